"""Where generations that have ended let go of their models: off the event loop, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from services.common.stoppable import in_thread
from services.engine.generation import Generation

_MOST_WAITING: Final = 64

log = structlog.get_logger(component="memory_pool")


class Disposal:
    """A queue and its worker; unmapping a large model takes long, and no request waits for it or hears of its failure.

    Args:
        disposed: Told of each, however it went.
    """

    def __init__(self, disposed: Callable[[Generation], None] = lambda _: None) -> None:
        self._disposed = disposed
        self._waiting: asyncio.Queue[Generation] = asyncio.Queue(_MOST_WAITING)

    async def take(self, generation: Generation) -> None:
        """Queues one that has ended and that nobody uses; waits while too many are queued."""
        await self._waiting.put(generation)

    async def work(self) -> None:
        """Disposes for ever; what is left when it is cancelled goes with the process."""
        while True:
            await self._dispose(await self._waiting.get())

    async def settled(self) -> None:
        """Returns once all that were taken have let go."""
        await self._waiting.join()

    async def _dispose(self, generation: Generation) -> None:
        try:
            await in_thread(generation.let_go)
        except Exception:
            log.exception("disposal_failed", artifact_id=generation.artifact_id)
        else:
            log.info("generation_disposed", artifact_id=generation.artifact_id)
        finally:
            self._disposed(generation)
            self._waiting.task_done()
