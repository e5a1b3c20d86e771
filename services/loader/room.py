"""Room for one more file of weights: the first place that has it, or has it once old artifacts are gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from services.common.errors import Overloaded
from services.common.memory_guard import MemoryGuard, guarded
from services.common.stoppable import run_stoppable
from services.common.telemetry.prealloc import tell_prealloc
from services.loader.place import Place, PlaceKind
from services.loader.places import HUGE_PAGE_REMEDIES
from services.loader.reservation import Reservation
from services.loader.residents import Prepared, Residents

log = structlog.get_logger(component="memory_pool")


class Room:
    """The places and what lies in them.

    Args:
        places: Best first.
        residents: Who may have to go.
        evict: Makes one of them go.
        guard: Bounds the memory that all of them may take.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        places: Sequence[Place],
        residents: Residents,
        evict: Callable[[Prepared], None],
        guard: MemoryGuard,
        clock_s: Callable[[], float],
    ) -> None:
        self._places = tuple(places)
        self._residents = residents
        self._evict = evict
        self._guard = guard
        self._clock_s = clock_s
        self.placement = f"to be tried: {', '.join(place.kind for place in self._places)}"

    async def reserve(self, name: str, size_bytes: int) -> Reservation:
        """Takes the room, pages and all.

        Raises:
            Overloaded: Memory would be short; the message has the arithmetic. Or no place has room; it says what
                each answered and who holds what.
        """
        await self.check_memory(size_bytes)
        refusals: list[str] = []
        for place in self._places:
            try:
                reservation = await self._reserve_in(place, name, size_bytes)
            except OSError as failure:
                refusals.append(self._refusal(place, failure))
            else:
                self.placement = _describe(reservation, refusals)
                return reservation
        raise Overloaded(
            f"no room for {size_bytes} bytes of weights: {'; '.join(refusals)}",
            reason="NO_ROOM_FOR_WEIGHTS",
            retry_after_s=10.0,
        )

    async def check_memory(self, need_bytes: int) -> None:
        """Raises Overloaded unless the guard lets so much be taken, now or once what is idle is gone.

        A file that lies on a disk takes none: the kernel drops its pages when it needs them.
        """
        in_memory = [place for place in self._places if place.kind.is_memory]
        while in_memory and (refusal := await asyncio.to_thread(self._guard.refusal, need_bytes)):
            if not any(self._evict_from(place) for place in in_memory):
                raise guarded(refusal)

    async def _reserve_in(self, place: Place, name: str, size_bytes: int) -> Reservation:
        while True:
            try:
                return await self._take(place, name, size_bytes)
            except OSError:
                if not self._evict_from(place):
                    raise

    def _evict_from(self, place: Place) -> bool:
        """Makes one file go that nobody counts on; whether there was one."""
        evicted = self._evict_own(place.kind) or _evict_any(place)
        if evicted is None:
            return False
        log.info("checkpoint_evicted", name=evicted, place=place.kind)
        return True

    def _evict_own(self, kind: PlaceKind) -> str | None:
        victim = self._residents.victim(kind, self._clock_s())
        if victim is None:
            return None
        self._evict(victim)
        return victim.name

    async def _take(self, place: Place, name: str, size_bytes: int) -> Reservation:
        started = time.monotonic()
        reservation = await run_stoppable(
            lambda _stop: Reservation.take(place, name, size_bytes), Reservation.discard
        )
        tell_prealloc(
            size_bytes,
            place=place.kind,
            huge_pages=reservation.huge_pages,
            seconds=round(time.monotonic() - started, 3),
        )
        return reservation

    def _refusal(self, place: Place, failure: OSError) -> str:
        refusal = f"{place.kind}: {failure.strerror}"
        if held_bytes := self._residents.held_bytes(place.kind):
            refusal += f", {held_bytes} bytes held by artifacts asked for lately"
        return refusal


def _evict_any(place: Place) -> str | None:
    """Takes the place of what no loader counts on: another's that rests, or a dead one's, finished or not."""
    try:
        shared = place.shared(make=False)
    except OSError:
        return None
    if shared is None:
        return None
    shared.sweep()
    return shared.evict()


def _describe(reservation: Reservation, refusals: list[str]) -> str:
    """Where the weights went and why, and what would be better."""
    if reservation.huge_pages:
        return "; ".join([f"{reservation.kind}, huge pages", *refusals])
    remedy = HUGE_PAGE_REMEDIES[reservation.kind]
    log.warning("pages_not_huge", place=reservation.kind, remedy=remedy)
    return "; ".join([f"{reservation.kind}, no huge pages ({remedy})", *refusals])
