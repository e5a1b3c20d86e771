"""News that something has changed, for any number of listeners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from services.common.background import background


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


async def merged(*beats: AsyncGenerator[Any, None]) -> AsyncGenerator[None, None]:
    """Yields whenever any of `beats` does, which it closes at its end; several may come as one."""
    news = asyncio.Event()
    async with contextlib.AsyncExitStack() as scope:
        for each in beats:
            await scope.enter_async_context(background(_note(each, news)))
        while True:
            await news.wait()
            news.clear()
            yield


async def _note(beats: AsyncGenerator[Any, None], news: asyncio.Event) -> None:
    async with contextlib.aclosing(beats):
        async for _ in beats:
            news.set()
