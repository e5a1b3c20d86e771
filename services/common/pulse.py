"""News that something has changed, for any number of listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Pulse:
    """Beats when something has changed. Listeners then look for themselves; several beats may come as one."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()  # replaced with every beat

    @property
    def count(self) -> int:
        """Beats so far."""
        return self._count

    def beat(self) -> None:
        self._count += 1
        beaten, self._next = self._next, asyncio.Event()
        beaten.set()

    async def beats(self) -> AsyncGenerator[None, None]:
        """Yields at once if it has ever beaten, and then after every beat. Never ends by itself."""
        seen = 0
        while True:
            while self._count == seen:
                await self._next.wait()
            seen = self._count
            yield
