"""The scheduler, over the wire."""

from __future__ import annotations

import grpc

from halogen.v1 import scheduler_pb2 as pb
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.ticket import Ticket
from services.gateway.peer_failure import peer_failure
from services.gateway.ports import Grant, TokenRequest


class SchedulerClient:
    """Implements `ports.Scheduler` on a channel to it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SchedulerServiceStub(channel)

    async def grant(self, request: TokenRequest, ticket_id: TicketId, timeout_s: float | None) -> Grant:
        asked = pb.GrantTicketRequest(
            request_id=request.request_id,
            artifact_id=request.artifact_id,
            prompt_tokens=len(request.prompt_token_ids),
            max_tokens=request.sampling.max_tokens,
            ticket_id=ticket_id,
        )
        try:
            answer = await self._stub.GrantTicket(asked, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise peer_failure(failure, "the scheduler") from failure
        ticket = Ticket(
            id=TicketId(answer.ticket.ticket_id),
            engine_instance_id=InstanceId(answer.ticket.engine_instance_id),
            artifact_id=ArtifactId(answer.ticket.artifact_id),
            reserved_bytes=answer.ticket.reserved_bytes,
            term=answer.ticket.term,
            expire_time_ns=answer.ticket.expire_time.ToNanoseconds(),
        )
        return Grant(ticket, answer.ticket.mac, ProcessId(answer.engine_id), answer.engine_address)

    async def release(self, ticket_id: TicketId, timeout_s: float) -> None:
        try:
            await self._stub.ReleaseTicket(pb.ReleaseTicketRequest(ticket_id=ticket_id), timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise peer_failure(failure, "the scheduler") from failure
