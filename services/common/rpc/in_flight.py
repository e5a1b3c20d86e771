"""How many calls a server is working on, and the moment when there are none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class InFlight:
    """Counts calls by scope, so that no exit path can forget to count down."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        return self._count

    @contextlib.contextmanager
    def track(self, method: str) -> Iterator[None]:
        """Counts one call of `method` (``/package.Service/Method``) while the scope lasts."""
        if method.rpartition("/")[2].startswith("Watch"):
            yield  # a watch lasts as long as its caller: no work to wait for
            return
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()
