"""Which engine takes a request: filter, score, pick."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from services.common.watermark import Level
from services.scheduler.engine_instance import EngineInstance
from services.scheduler.request import TicketRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A request on an engine, and the bytes that it is promised there."""

    engine: EngineInstance
    reserved_bytes: int


def place(
    request: TicketRequest, engines: Iterable[EngineInstance], unstarted_tokens: int
) -> Placement | None:
    """The engine that takes `request` now, or None while it must wait.

    Args:
        request: What asks.
        engines: All that there are.
        unstarted_tokens: Usual bound on prompt tokens granted on an engine whose prefill has not begun.
    """
    open_to_it = [
        placement
        for placement in possible(request, engines)
        if _has_room(placement) and _may_begin(request, placement.engine, unstarted_tokens)
    ]
    return min(open_to_it, key=_rank, default=None)


def possible(request: TicketRequest, engines: Iterable[EngineInstance]) -> Iterator[Placement]:
    """The engines that could ever take `request`: its artifact is ACTIVE there, context and arena are long enough."""
    for engine in engines:
        resident = engine.resident(request.artifact_id)
        if resident is None or request.prompt_tokens + request.max_tokens > resident.max_context_tokens:
            continue
        needed = engine.needed_bytes(resident, request.prompt_tokens, request.max_tokens)
        if needed <= engine.ledger.arena_bytes:
            yield Placement(
                engine, engine.promised_bytes(resident, request.prompt_tokens, request.max_tokens)
            )


def _has_room(placement: Placement) -> bool:
    return placement.engine.ledger.can_grant(placement.reserved_bytes)


def _may_begin(request: TicketRequest, engine: EngineInstance, unstarted_tokens: int) -> bool:
    """What the watermark allows: an idle engine anything, one with nothing unstarted any single prompt."""
    if not engine.ledger.promises:
        return True
    if engine.level is Level.HARD:
        return False
    bound = unstarted_tokens // 2 if engine.level is Level.SOFT else unstarted_tokens
    unstarted = engine.ledger.unstarted_tokens
    return unstarted == 0 or unstarted + request.prompt_tokens <= bound


def _rank(placement: Placement) -> tuple[bool, float, str]:
    """Least occupied first; engines without a lease last; ties by name."""
    engine = placement.engine
    return engine.is_stale, engine.ledger.occupancy, engine.id
