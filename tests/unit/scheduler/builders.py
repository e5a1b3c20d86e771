"""Small engines, requests and admissions, where one block is 16 tokens and 100 bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from services.common.ids import (
    ArtifactId,
    Cohort,
    InstanceId,
    ModelName,
    ProcessId,
    RequestId,
    Revision,
    TicketId,
)
from services.common.registry import keys
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationRecord,
    GenerationState,
    Serving,
    Target,
)
from services.common.watermark import Bounds
from services.scheduler.admission import Admission, Limits
from services.scheduler.admission_queue import AdmissionQueue
from services.scheduler.engine_instance import EngineInstance
from services.scheduler.fleet import Fleet
from services.scheduler.occupancy import Delta, LiveTicket, Resident, Snapshot
from services.scheduler.request import RoutedBy, TicketRequest

BOUNDS: Final = Bounds(soft=0.75, hard=0.90, soft_release=0.70, hard_release=0.85)
ARTIFACT: Final = ArtifactId("a" * 64)
OTHER: Final = ArtifactId("b" * 64)
BLOCK_BYTES: Final = 100
TARGET_KEY: Final = keys.target(ModelName("m"), Cohort.STABLE)
SERVING_KEY: Final = keys.serving(ModelName("m"), Cohort.STABLE)
_numbers = itertools.count(1)
TTL_NS: Final = 10_000_000_000


def target(revision: int = 1, artifact: ArtifactId | None = ARTIFACT) -> Target:
    return Target(revision=Revision(revision), artifact_id=artifact, who="w", why="y")


def standing(revision: int = 1, artifact: ArtifactId | None = ARTIFACT) -> Serving:
    return Serving(revision=Revision(revision), artifact_id=artifact)


def gateway(name: str = "g", *artifacts: ArtifactId) -> GatewayRecord:
    return GatewayRecord(
        id=ProcessId(name),
        instance_id=InstanceId(f"{name}-1"),
        address="x:1",
        host="h",
        start_time="2026-01-01T00:00:00+00:00",
        artifact_ids=artifacts,
    )


def generation(
    artifact: ArtifactId = ARTIFACT, state: GenerationState = GenerationState.ACTIVE, revision: int = 1
) -> GenerationRecord:
    return GenerationRecord(
        model=ModelName("m"),
        cohort=Cohort.STABLE,
        revision=Revision(revision),
        artifact_id=artifact,
        state=state,
    )


def engine_record(
    name: str = "e",
    *,
    start: int = 1,
    address: str = "x:1",
    generations: Sequence[GenerationRecord] | None = None,
) -> EngineRecord:
    return EngineRecord(
        id=ProcessId(name),
        instance_id=InstanceId(f"{name}-{start}"),
        address=address,
        host="h",
        start_time="2026-01-01T00:00:00+00:00",
        runtime_build="test",
        generations=(generation(),) if generations is None else tuple(generations),
    )


def resident(
    artifact: ArtifactId = ARTIFACT,
    state: GenerationState = GenerationState.ACTIVE,
    *,
    context: int = 4096,
    block_bytes: int = BLOCK_BYTES,
) -> Resident:
    return Resident(
        artifact_id=artifact,
        state=state,
        block_bytes=block_bytes,
        block_tokens=16,
        max_context_tokens=context,
    )


def live(ticket_id: str, blocks: int = 1, *, prompt_tokens: int = 10, started: bool = False) -> LiveTicket:
    return LiveTicket(
        id=TicketId(ticket_id),
        reserved_bytes=blocks * BLOCK_BYTES,
        prompt_tokens=prompt_tokens,
        prefill_started=started,
    )


def snapshot(
    engine: EngineInstance,
    blocks: int = 100,
    *,
    tickets: Sequence[LiveTicket] = (),
    residents: Sequence[Resident] | None = None,
    max_tickets: int = 0,
) -> Snapshot:
    return Snapshot(
        engine_id=engine.id,
        engine_instance_id=engine.instance_id,
        arena_bytes=blocks * BLOCK_BYTES,
        tickets=tuple(tickets),
        residents=(resident(),) if residents is None else tuple(residents),
        max_tickets=max_tickets,
    )


def request(
    prompt_tokens: int = 10,
    max_tokens: int = 7,
    *,
    artifact: ArtifactId = ARTIFACT,
    ticket_id: str = "",
    routed_by: RoutedBy | None = None,
) -> TicketRequest:
    """One block's worth, unless more is asked for."""
    return TicketRequest(
        request_id=RequestId("r"),
        artifact_id=artifact,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        ticket_id=TicketId(ticket_id or f"t{next(_numbers)}"),
        routed_by=routed_by,
    )


def blocks(count: int, *, prompt_tokens: int = 1, artifact: ArtifactId = ARTIFACT) -> TicketRequest:
    """A request whose worst case is `count` blocks."""
    return request(prompt_tokens, count * 16 + 1 - prompt_tokens, artifact=artifact)


def engine(
    fleet: Fleet,
    name: str = "e",
    *,
    blocks: int = 100,
    tickets: Sequence[LiveTicket] = (),
    residents: Sequence[Resident] | None = None,
    max_tickets: int = 0,
) -> EngineInstance:
    """A heard engine, added to the fleet."""
    instance = fleet.arrive(engine_record(name, address=f"{name}:1"))
    instance.begin(snapshot(instance, blocks, tickets=tickets, residents=residents, max_tickets=max_tickets))
    return instance


def start_prefill(instance: EngineInstance) -> None:
    """The engine takes all tickets and begins their prompts."""
    started = [
        LiveTicket(
            id=promise.id,
            reserved_bytes=promise.reserved_bytes,
            prompt_tokens=promise.prompt_tokens,
            prefill_started=True,
        )
        for promise in instance.ledger.promises.values()
    ]
    instance.follow(Delta(tickets=tuple(started)))


def close_all(instance: EngineInstance) -> None:
    instance.follow(Delta(closed=tuple(instance.ledger.promises)))


def admission(
    *,
    max_requests: int = 1024,
    max_prompt_tokens: int = 262_144,
    unstarted_tokens: int = 4096,
    ttl_ns: int = TTL_NS,
    queue_wait_ns: int = 0,
    serving: Mapping[str, Serving] | None = None,
) -> Admission:
    """An admission without engines, of a scheduler that leads."""
    made = Admission(
        Fleet(BOUNDS),
        AdmissionQueue(max_requests=max_requests, max_prompt_tokens=max_prompt_tokens),
        Limits(unstarted_tokens=unstarted_tokens, ticket_ttl_ns=ttl_ns, queue_wait_ns=queue_wait_ns),
        serving or {},
    )
    made.lead(1)
    return made
