"""Which requests no waiting can help, and what they are told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from services.common.errors import HalogenError, InvalidRequest, Overloaded, Unavailable
from services.common.no_engine import NO_ENGINE, NoEngine
from services.common.registry import keys
from services.common.registry.records import Served, Serving
from services.scheduler.engine_instance import Contact, EngineInstance
from services.scheduler.occupancy import Resident
from services.scheduler.placement import possible
from services.scheduler.request import RoutedBy, TicketRequest

RETRY_AFTER_S: Final = 1.0
_NEXT_LEADER_S: Final = 0.1


def refusal(
    request: TicketRequest, engines: Collection[EngineInstance], serving: Mapping[str, Serving]
) -> HalogenError | None:
    """Why `request` can never be granted as things are, or None if it may wait for room.

    Args:
        request: What asks.
        engines: All that there are.
        serving: What cohorts serve, by key.

    Returns:
        Unavailable (NO_ENGINE): No engine has the artifact ACTIVE; with what `NoEngine` holds.
        InvalidRequest (CONTEXT_EXCEEDED): It is longer than the model's context.
        InvalidRequest (PROMPT_TOO_LARGE): Its worst case exceeds every engine's whole KV memory.
    """
    if any(True for _ in possible(request, engines)):
        return None
    having = [engine for engine in engines if engine.may_serve(request.artifact_id)]
    if not having:
        return _no_engine(request, engines, serving)
    if any(engine.contact is not Contact.HEARD for engine in having):
        return None  # one whose sizes are not at hand may do
    found = [(engine, resident) for engine in having if (resident := engine.resident(request.artifact_id))]
    longest = max(resident.max_context_tokens for _, resident in found)
    if request.prompt_tokens + request.max_tokens > longest:
        return _context_exceeded(request, longest)
    return _too_large(request, found)


def not_leader() -> Unavailable:
    """What everybody is told while another scheduler leads, or none does yet."""
    return Unavailable(
        "this scheduler does not lead; ask the one that the registry names, or try again shortly",
        reason="NOT_LEADER",
        retry_after_s=_NEXT_LEADER_S,
    )


def too_long(ahead: int, wait_s: float, most_s: float) -> Overloaded:
    """What a newcomer is told who would wait for more than `most_s`; who comes back when told finds a shorter line."""
    return Overloaded(
        f"{ahead} requests are waiting already, and it takes about {wait_s:.0f} s until they are through; at most "
        f"{most_s:g} s are waited for (--queue-wait-s): try again later",
        reason="QUEUE_TOO_LONG",
        metadata={"expected_wait_s": f"{wait_s:.1f}", "max_wait_s": f"{most_s:g}"},
        retry_after_s=max(RETRY_AFTER_S, wait_s - most_s),
    )


def _no_engine(
    request: TicketRequest, engines: Collection[EngineInstance], serving: Mapping[str, Serving]
) -> Unavailable:
    loading = any(engine.is_loading(request.artifact_id) for engine in engines)
    why = "engines are still loading it" if loading else "no engine has it"
    is_draining = any(engine.is_draining(request.artifact_id) for engine in engines)
    facts = NoEngine(_newer(request.routed_by, serving), is_draining)
    return Unavailable(
        f"the model cannot answer now: {why}; try again shortly",
        reason=NO_ENGINE,
        metadata={"artifact_id": request.artifact_id, **facts.metadata()},
        retry_after_s=RETRY_AFTER_S,
    )


def _newer(routed_by: RoutedBy | None, serving: Mapping[str, Serving]) -> Served | None:
    """What is served where the request came from, if its gateway has not heard of that yet."""
    now = serving.get(keys.serving(routed_by.model, routed_by.cohort)) if routed_by else None
    if routed_by is None or now is None or now.revision <= routed_by.revision:
        return None
    return Served(revision=now.revision, artifact_id=now.artifact_id)


def _context_exceeded(request: TicketRequest, longest: int) -> InvalidRequest:
    return InvalidRequest(
        f"prompt ({request.prompt_tokens} tokens) and max_tokens ({request.max_tokens}) together exceed the "
        f"model's context of {longest} tokens; shorten the prompt or lower max_tokens",
        reason="CONTEXT_EXCEEDED",
        metadata=_numbers(request, max_context_tokens=longest),
    )


def _too_large(request: TicketRequest, found: Sequence[tuple[EngineInstance, Resident]]) -> InvalidRequest:
    """Told with the numbers of the engine that comes nearest."""
    engine, resident = max(found, key=lambda pair: _capacity_tokens(*pair))
    capacity = _capacity_tokens(engine, resident)
    needed = engine.needed_bytes(resident, request.prompt_tokens, request.max_tokens)
    return InvalidRequest(
        f"prompt ({request.prompt_tokens} tokens) and max_tokens ({request.max_tokens}) need more KV memory "
        f"than any engine has ({needed} of {engine.ledger.arena_bytes} bytes); keep them at or below "
        f"{capacity} tokens together, or give an engine a larger arena",
        reason="PROMPT_TOO_LARGE",
        metadata=_numbers(
            request,
            needed_bytes=needed,
            arena_bytes=engine.ledger.arena_bytes,
            max_total_tokens=capacity,
        ),
    )


def _capacity_tokens(engine: EngineInstance, resident: Resident) -> int:
    """Most tokens of prompt and answer together; the last one is never stored."""
    return engine.ledger.arena_bytes // resident.block_bytes * resident.block_tokens + 1


def _numbers(request: TicketRequest, **more: int) -> dict[str, str]:
    numbers = {"prompt_tokens": request.prompt_tokens, "max_tokens": request.max_tokens, **more}
    return {name: str(number) for name, number in numbers.items()}
