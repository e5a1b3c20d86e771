"""An engine's occupancy, over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable

import grpc

from halogen.v1 import engine_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.engine_pb2_grpc import EngineServiceStub
from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.registry.records import GenerationState
from services.common.rpc.client import connect
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint
from services.common.rpc.peer_error import from_peer
from services.scheduler.occupancy import Delta, LiveTicket, Resident, Snapshot


@contextlib.asynccontextmanager
async def watch_occupancy(
    credentials: Credentials, address: str
) -> AsyncIterator[AsyncIterator[Snapshot | Delta]]:
    """The occupancy of the engine at `address`, to whom `credentials` are shown, for as long as the scope lasts.

    A stream that breaks raises the error of the tree that its status stands for.
    """
    async with connect(Endpoint(address, credentials)) as channel:
        call = EngineServiceStub(channel).WatchOccupancy(pb.WatchOccupancyRequest())
        try:
            yield _events(call)
        finally:
            call.cancel()


async def _events(call: AsyncIterable[pb.WatchOccupancyResponse]) -> AsyncIterator[Snapshot | Delta]:
    try:
        async for message in call:
            yield _event(message)
    except grpc.aio.AioRpcError as failure:
        raise from_peer(failure, "an engine") from failure


def _event(message: pb.WatchOccupancyResponse) -> Snapshot | Delta:
    if message.HasField("snapshot"):
        snapshot = message.snapshot
        return Snapshot(
            engine_id=ProcessId(snapshot.engine_id),
            engine_instance_id=InstanceId(message.engine_instance_id),
            arena_bytes=snapshot.arena_bytes,
            tickets=_tickets(snapshot.tickets),
            residents=_residents(snapshot.generations),
            max_tickets=snapshot.max_concurrent_requests,
        )
    delta = message.delta
    has_generations = delta.generations_changed or bool(delta.generations)  # an older engine gives them alone
    return Delta(
        tickets=_tickets(delta.tickets),
        closed=tuple(TicketId(ticket_id) for ticket_id in delta.closed_ticket_ids),
        residents=_residents(delta.generations) if has_generations else None,
        arena_bytes=delta.arena_bytes,
    )


def _tickets(tickets: Iterable[pb.LiveTicket]) -> tuple[LiveTicket, ...]:
    return tuple(
        LiveTicket(
            id=TicketId(ticket.ticket_id),
            reserved_bytes=ticket.reserved_bytes,
            prompt_tokens=ticket.prompt_tokens,
            prefill_started=ticket.prefill_started,
        )
        for ticket in tickets
    )


def _residents(generations: Iterable[pb.ResidentGeneration]) -> tuple[Resident, ...]:
    """Those in a state that this version knows, and with the sizes that an ACTIVE one must have."""
    known = (
        Resident(
            artifact_id=ArtifactId(generation.artifact_id),
            state=GenerationState(_state_name(generation.state)),
            block_bytes=generation.block_bytes,
            block_tokens=generation.block_tokens,
            max_context_tokens=generation.max_context_tokens,
            expected_answer_tokens=generation.expected_answer_tokens,
        )
        for generation in generations
        if _state_name(generation.state) in GenerationState.__members__
    )
    return tuple(
        resident
        for resident in known
        if resident.state is not GenerationState.ACTIVE or (resident.block_bytes and resident.block_tokens)
    )


def _state_name(state: int) -> str:
    names = {number: name for name, number in types_pb2.GenerationState.items()}
    return names.get(state, "").removeprefix("GENERATION_STATE_")
