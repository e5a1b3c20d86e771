"""Notices that something which is under way does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class StallTimer:
    """Calls back once when what is under way has made no progress for a time.

    It costs a look at the clock for every step of progress, one timer for each `patience_s` while something is
    under way, and nothing while nothing is.

    Args:
        patience_s: How long no progress is no news.
        stalled: Called on the event loop; again only after progress has been made again.
    """

    def __init__(self, patience_s: float, stalled: Callable[[], None]) -> None:
        self._patience_s = patience_s
        self._stalled = stalled
        self._moved_s: float | None = None  # loop time of the last progress; None while nothing is under way
        self._timer: asyncio.TimerHandle | None = None

    def progress(self) -> None:
        """Something is under way and has begun or moved."""
        loop = asyncio.get_running_loop()
        self._moved_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_at(self._moved_s + self._patience_s, self._look)

    def rest(self) -> None:
        """Nothing is under way."""
        self._moved_s = None

    def close(self) -> None:
        """Calls back no more."""
        self.rest()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._moved_s is None:
            return
        loop, due_s = asyncio.get_running_loop(), self._moved_s + self._patience_s
        if loop.time() >= due_s:
            self._stalled()
        else:
            self._timer = loop.call_at(due_s, self._look)
