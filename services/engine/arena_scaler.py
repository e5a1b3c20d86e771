"""Keeps the arena as large as `Autoscale` wants it, beside everything else."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from services.common.memory_guard import MemoryGuard
from services.common.stoppable import in_thread
from services.engine.arena import Arena
from services.engine.autoscale import Autoscale, Size, View
from services.engine.demand import Demand
from services.engine.memory_pressure import Signs
from services.engine.span_set import Span

LOOK_S: Final = 1.0
_SLICE_BYTES: Final = 64 << 20  # withheld at a time: milliseconds

log = structlog.get_logger(component="memory_pool")


@dataclasses.dataclass(slots=True)
class ArenaScaler:
    """Looks every second, in a thread: no step and no call waits for it. An arena that cannot grow is left alone.

    Args:
        arena: What is scaled.
        autoscale: Decides.
        guards: Bound what the arena may take.
        signs: Reads whether memory is short.
        told: Called on the event loop with what schedulers may promise from.
        demand: What requests want; asked by the thread.
    """

    arena: Arena
    autoscale: Autoscale
    guards: tuple[MemoryGuard, ...]
    signs: Callable[[], Signs]
    told: Callable[[int], None]
    demand: Callable[[], Demand] = Demand
    _turn: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _before: Signs | None = None
    _before_s: float = 0

    async def follow(self) -> None:
        """Looks until cancelled."""
        while self._may_scale:
            try:
                await self.look()
            except OSError:  # what it cannot give back or read now, it may the next time
                log.exception("arena_scaling_failed")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look, and what follows from it."""
        size = await in_thread(lambda: self._look(time.monotonic()))
        self.told(self.arena.pool.promisable(size.told_bytes))

    def make_room(self) -> None:
        """Somebody needs memory: what is neither in use nor below the floor goes back to the host. Blocks."""
        if self._may_scale:
            with self._turn:
                view = self._view(is_pressed=True)
                self._apply(self.autoscale.decide(time.monotonic(), view), view)

    @property
    def _may_scale(self) -> bool:
        return self.autoscale.most_bytes > self.autoscale.floor_bytes

    def _look(self, now_s: float) -> Size:
        with self._turn:
            view = self._view(is_pressed=self._is_pressed(now_s))
            return self._apply(self.autoscale.decide(now_s, view), view)

    def _is_pressed(self, now_s: float) -> bool:
        """Since the last look; or more is held than the guard allows."""
        signs, before, before_s = self.signs(), self._before, self._before_s
        self._before, self._before_s = signs, now_s
        is_short = before is not None and signs.is_pressed_since(before, now_s - before_s)
        return is_short or any(guard.refusal(0) for guard in self.guards)

    def _view(self, *, is_pressed: bool) -> View:
        pool = self.arena.pool
        rooms = [room for guard in self.guards if (room := guard.room_bytes) is not None]
        demand = self.demand()
        taken_bytes = self.arena.untouched_bytes + demand.swap_bytes
        room_bytes = min(rooms, default=self.arena.most_bytes) - taken_bytes
        used_bytes = max(pool.used_bytes + demand.waiting_bytes, demand.promised_bytes)
        return View(pool.total_bytes, used_bytes, demand.alone_bytes, max(0, room_bytes), is_pressed)

    def _apply(self, size: Size, view: View) -> Size:
        pool = self.arena.pool
        if size.total_bytes > view.total_bytes:
            pool.extend(size.total_bytes)
        elif size.total_bytes < view.total_bytes:
            self.arena.discard(pool.give_up(size.total_bytes))
        if view.is_pressed:
            self._discard_free()
        if pool.total_bytes != view.total_bytes:
            log.info("arena_resized", old_bytes=view.total_bytes, new_bytes=pool.total_bytes, **_why(view))
        return Size(min(size.told_bytes, pool.total_bytes), pool.total_bytes)

    def _discard_free(self) -> None:
        """A slice at a time, so that nobody is refused for what is free."""
        for start in range(0, self.arena.pool.total_bytes, _SLICE_BYTES):
            with self.arena.pool.withheld(Span(start, start + _SLICE_BYTES)) as spans:
                for span in spans:
                    self.arena.discard(span)


def _why(view: View) -> dict[str, object]:
    return {"used_bytes": view.used_bytes, "is_pressed": view.is_pressed}
