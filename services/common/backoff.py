"""How long to wait before the next try."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each shortened by up to half so that callers spread out.

    Args:
        first_s: The first one, before it is shortened.
        most_s: The longest.
        uniform: Chooses between two numbers.
    """

    def __init__(
        self,
        first_s: float = 0.05,
        most_s: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s
        self._uniform = uniform

    def reset(self) -> None:
        """Starts over, after a success."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The length of the next pause in seconds; never over `most_s`."""
        pause_s = self._next_s * self._uniform(0.5, 1.0)  # spreads load, guards nothing
        self._next_s = min(2 * self._next_s, self._most_s)
        return pause_s

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())
