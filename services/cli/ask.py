"""Asking a served model from the command line, the answer printed as it comes."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """What the asker felt."""

    first_token_s: float
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, over the time since the first; 0 for an answer of one token."""
        after = self.seconds - self.first_token_s
        return (self.tokens - 1) / after if self.tokens > 1 and after > 0 else 0.0
