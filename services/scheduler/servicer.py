"""SchedulerService on the wire: translates, decides nothing."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from halogen.v1 import scheduler_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceServicer
from services.common.errors import DeadlinePassed, InvalidRequest
from services.common.ids import (
    ARTIFACT_ID_PATTERN,
    ArtifactId,
    Cohort,
    ModelName,
    RequestId,
    Revision,
    TicketId,
    fresh_id,
)
from services.common.telemetry.attributes import (
    ARTIFACT_ID,
    ENGINE_ID,
    INPUT_TOKENS,
    REQUEST_ID,
    REQUEST_MAX_TOKENS,
    TICKET_ID,
)
from services.common.telemetry.tracing import annotate
from services.common.ticket import Ticket, TicketSigner
from services.scheduler.engine_instance import EngineInstance
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.request import RoutedBy, TicketRequest
from services.scheduler.ticket_desk import TicketDesk

MAX_REQUEST_ID_CHARS = 128
MAX_TICKET_ID_CHARS = 64

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(SchedulerServiceServicer):
    """Implements halogen.v1.SchedulerService.

    Args:
        desk: Where tickets are obtained.
        signer: Signs them.
        metrics: Told of every question.
    """

    def __init__(self, desk: TicketDesk, signer: TicketSigner, metrics: SchedulerMetrics) -> None:
        self._desk = desk
        self._signer = signer
        self._metrics = metrics

    async def GrantTicket(self, request: pb.GrantTicketRequest, context: Context) -> pb.GrantTicketResponse:
        with self._metrics.question():
            asked = _request(request)
            annotate(_described(asked))
            grant = await self._desk.obtain(asked)
            annotate({ENGINE_ID: grant.engine_id})
            remaining_s = context.time_remaining()
            if remaining_s is not None and remaining_s <= 0:
                self._desk.release(grant.ticket.id)
                raise DeadlinePassed("the deadline passed while the ticket was granted; it was returned")
        return pb.GrantTicketResponse(
            ticket=_ticket(grant.ticket, self._signer.sign(grant.ticket)),
            engine_id=grant.engine_id,
            engine_address=grant.engine_address,
        )

    async def ReleaseTicket(
        self, request: pb.ReleaseTicketRequest, context: Context
    ) -> pb.ReleaseTicketResponse:
        self._desk.release(TicketId(request.ticket_id))
        return pb.ReleaseTicketResponse()

    async def GetOccupancy(
        self, request: pb.GetOccupancyRequest, context: Context
    ) -> pb.GetOccupancyResponse:
        queue = self._desk.admission.queue
        return pb.GetOccupancyResponse(
            engines=[_occupancy(engine) for engine in self._desk.admission.fleet],
            queued_requests=len(queue),
            queued_prompt_tokens=queue.prompt_tokens,
            peak_queued_requests=queue.peak_requests,
        )


def _request(request: pb.GrantTicketRequest) -> TicketRequest:
    """Raises InvalidRequest where a field is missing: proto3 reads absence as zero."""
    for name in ("prompt_tokens", "max_tokens"):
        if getattr(request, name) < 1:
            raise InvalidRequest(f"{name} must be at least 1")
    if not ARTIFACT_ID_PATTERN.fullmatch(request.artifact_id):
        raise InvalidRequest("artifact_id must be 64 lower-case hexadecimal digits")
    for name, most in (("request_id", MAX_REQUEST_ID_CHARS), ("ticket_id", MAX_TICKET_ID_CHARS)):
        if len(getattr(request, name)) > most:
            raise InvalidRequest(f"{name} must have at most {most} characters")
    return TicketRequest(
        request_id=RequestId(request.request_id),
        artifact_id=ArtifactId(request.artifact_id),
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        ticket_id=TicketId(request.ticket_id or fresh_id("ticket")),
        routed_by=_routed_by(request),
    )


def _routed_by(request: pb.GrantTicketRequest) -> RoutedBy | None:
    """None, too, where the cohort is one that a newer gateway knows: nothing can be said of it."""
    if not request.revision or request.cohort not in set(Cohort):
        return None
    return RoutedBy(ModelName(request.model), Cohort(request.cohort), Revision(request.revision))


def _described(request: TicketRequest) -> dict[str, str | int]:
    return {
        REQUEST_ID: request.request_id,
        TICKET_ID: request.ticket_id,
        ARTIFACT_ID: request.artifact_id,
        INPUT_TOKENS: request.prompt_tokens,
        REQUEST_MAX_TOKENS: request.max_tokens,
    }


def _ticket(ticket: Ticket, mac: bytes) -> types_pb2.Ticket:
    expire_time = Timestamp()
    expire_time.FromNanoseconds(ticket.expire_time_ns)
    return types_pb2.Ticket(
        ticket_id=ticket.id,
        engine_instance_id=ticket.engine_instance_id,
        artifact_id=ticket.artifact_id,
        reserved_bytes=ticket.reserved_bytes,
        term=ticket.term,
        expire_time=expire_time,
        mac=mac,
    )


def _occupancy(engine: EngineInstance) -> pb.EngineOccupancy:
    ledger = engine.ledger
    return pb.EngineOccupancy(
        engine_id=engine.id,
        engine_instance_id=engine.instance_id,
        arena_bytes=ledger.arena_bytes,
        promised_bytes=ledger.promised_bytes,
        tickets=len(ledger.promises),
        unstarted_prefill_tokens=ledger.unstarted_tokens,
        peak_occupancy=ledger.peak_bytes / ledger.arena_bytes if ledger.arena_bytes else 0.0,
    )
