"""Who calls, and what they may: pure decisions, which know no wire."""
