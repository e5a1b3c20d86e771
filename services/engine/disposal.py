"""Where generations that have ended let go of their models: off the event loop, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from services.common.stoppable import in_thread
from services.engine.generation import Generation
from services.engine.lender import LoadedModel

log = structlog.get_logger(component="memory_pool")


async def _nothing(_: LoadedModel) -> None:
    """What is forgotten of a model of which nothing is kept."""


class Disposal:
    """A queue and its worker; unmapping a large model takes long, and no request waits for it or hears of its failure.

    Args:
        disposed: Told of each, however it went.
        forget: Has what is kept of a model's answers go, before the model does.
    """

    def __init__(
        self,
        disposed: Callable[[Generation], None] = lambda _: None,
        forget: Callable[[LoadedModel], Awaitable[None]] = _nothing,
    ) -> None:
        self._disposed = disposed
        self._forget = forget
        # no bound of its own: whoever waits here has its place among the two of its model@cohort
        self._waiting: asyncio.Queue[Generation] = asyncio.Queue()

    def take(self, generation: Generation) -> None:
        """Queues one that has ended and that nobody uses."""
        self._waiting.put_nowait(generation)

    async def work(self) -> None:
        """Disposes for ever; what is left when it is cancelled goes with the process."""
        while True:
            await self._dispose(await self._waiting.get())

    async def settled(self) -> None:
        """Returns once all that were taken have let go."""
        await self._waiting.join()

    async def _dispose(self, generation: Generation) -> None:
        try:
            await self._free(generation)
        except Exception:
            log.exception("disposal_failed", artifact_id=generation.artifact_id)
        else:
            log.info("generation_disposed", artifact_id=generation.artifact_id)
        finally:
            self._disposed(generation)
            self._waiting.task_done()

    async def _free(self, generation: Generation) -> None:
        """Its model goes although what is kept of it could not."""
        try:
            if generation.model is not None:
                await self._forget(generation.model)
        finally:
            await in_thread(generation.let_go)
