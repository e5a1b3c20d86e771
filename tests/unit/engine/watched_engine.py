"""An engine that looks at its books aloud, and whose steps a test can count or make."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self
from unittest import mock

from services.common.kv import BLOCK_TOKENS
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.step_loop import StepLoop
from services.engine.stepper import Update
from services.engine.timeline import StepTimes
from tests.unit.engine.hand_loop import HandLoop
from tests.unit.engine.random_moves import SLOTS, Setting

SMALLEST_BLOCK: Final = BLOCK_TOKENS * 8
LARGEST_BLOCK: Final = SLOTS * SMALLEST_BLOCK
STUCK_S: Final = 30.0
_DEAR, _CHEAP = 1e-6, 1e18  # bytes that are copied in a second


class WatchedEngine(Engine):
    """An `Engine`, whose books are checked after every step.

    Attributes:
        broken: What was wrong with them first.
        full_steps: After how many steps no block was left for any model, or somebody waited for memory.
    """

    broken: Exception | None = None
    full_steps = 0

    @classmethod
    def of(cls, setting: Setting) -> Self:
        """On an arena of its own."""
        with mock.patch("services.engine.engine.StepLoop", StepLoop if setting.has_thread else HandLoop):
            made = cls(
                Arena(setting.blocks * LARGEST_BLOCK),
                chunk_tokens=setting.chunk_tokens,
                max_batch=setting.max_batch,
                check_every_step=True,
                swap_bytes=setting.swap_blocks * LARGEST_BLOCK,
            )
        made._costs._copy_bytes_per_s = _CHEAP if setting.is_copying_cheap else _DEAR
        return made

    async def __aenter__(self) -> Self:
        self._delivered = asyncio.Event()
        return await super().__aenter__()

    def deadline(self, patience: int) -> float:
        """So many steps from now, or milliseconds where steps come by themselves."""
        loop = self._loop
        return loop.now + patience if isinstance(loop, HandLoop) else time.monotonic() + patience / 1000

    async def one_step(self) -> None:
        """Returns when something was told, or nothing is left to do; raises if nobody can go on, though there is work."""
        if isinstance(self._loop, HandLoop):
            assert self._loop.turn(), "there is work, and nobody can go on"
            return
        self._delivered.clear()
        async with asyncio.timeout(STUCK_S):
            while self.is_busy and not self._delivered.is_set():
                await self._delivered.wait()

    def look(self) -> None:
        """Raises what was wrong with the books after any step."""
        if self.broken is not None:
            raise self.broken

    def _deliver(self, updates: list[Update], step: StepTimes) -> None:
        super()._deliver(updates, step)
        self.full_steps += self.arena.pool.room(SMALLEST_BLOCK) == 0 or self.desk.parked > 0
        try:
            self.check()
        except Exception as broken:  # noqa: BLE001  # the event loop would swallow it
            self.broken = self.broken or broken
        self._delivered.set()
