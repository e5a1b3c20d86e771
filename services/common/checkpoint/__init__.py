"""Checkpoints as bytes: the v2 weight file, the artifact around it, and where artifacts are kept. No torch here."""
