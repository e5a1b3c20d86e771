"""How long to wait before the next try."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each shortened by up to half so that callers spread out."""

    def __init__(self, first_s: float = 0.05, most_s: float = 2.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        """Starts over, after a success."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The length of the next pause in seconds; never over `most_s`."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
        self._next_s = min(2 * self._next_s, self._most_s)
        return pause_s

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())
