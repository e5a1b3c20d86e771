"""The engine: token ids in, token ids out. The one room that knows torch."""
