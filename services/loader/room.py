"""Room for one more file of weights: the first place that has it, or has it once old artifacts are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from services.common.errors import Overloaded
from services.common.ids import ArtifactId
from services.loader.place import Place, PlaceKind
from services.loader.places import HUGE_PAGE_REMEDIES
from services.loader.reservation import Reservation
from services.loader.residents import Prepared, Residents
from services.loader.stoppable import run_stoppable

log = structlog.get_logger()


class Room:
    """The places and what lies in them.

    Args:
        places: Best first.
        residents: Who may have to go.
        evict: Makes one of them go.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        places: Sequence[Place],
        residents: Residents,
        evict: Callable[[Prepared], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._places = tuple(places)
        self._residents = residents
        self._evict = evict
        self._clock_s = clock_s
        self.placement = f"to be tried: {', '.join(place.kind for place in self._places)}"

    async def reserve(self, artifact_id: ArtifactId, size_bytes: int) -> Reservation:
        """Takes the room, pages and all.

        Raises:
            Overloaded: No place has it; the message says what each answered and who holds what.
        """
        refusals: list[str] = []
        for place in self._places:
            try:
                reservation = await self._reserve_in(place, artifact_id, size_bytes)
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

    async def _reserve_in(self, place: Place, artifact_id: ArtifactId, size_bytes: int) -> Reservation:
        while True:
            try:
                return await self._take(place, artifact_id, size_bytes)
            except OSError:
                evicted = self._evict_own(place.kind) or _evict_any(place)
                if evicted is None:
                    raise
                log.info("checkpoint_evicted", artifact_id=evicted, place=place.kind)

    def _evict_own(self, kind: PlaceKind) -> ArtifactId | None:
        victim = self._residents.victim(kind, self._clock_s())
        if victim is None:
            return None
        self._evict(victim)
        return victim.artifact_id

    async def _take(self, place: Place, artifact_id: ArtifactId, size_bytes: int) -> Reservation:
        started = time.monotonic()
        reservation = await run_stoppable(
            lambda _stop: Reservation.take(place, artifact_id, size_bytes), Reservation.discard
        )
        log.info(
            "memory_prealloc",
            place=place.kind,
            size_bytes=size_bytes,
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
    """Takes the place of what no loader counts on: another's that rests, or a dead one's."""
    try:
        shared = place.shared(make=False)
    except OSError:
        return None
    return shared.evict() if shared else None


def _describe(reservation: Reservation, refusals: list[str]) -> str:
    """Where the weights went and why, and what would be better."""
    if reservation.huge_pages:
        return "; ".join([f"{reservation.kind}, huge pages", *refusals])
    remedy = HUGE_PAGE_REMEDIES[reservation.kind]
    log.warning("pages_not_huge", place=reservation.kind, remedy=remedy)
    return "; ".join([f"{reservation.kind}, no huge pages ({remedy})", *refusals])
