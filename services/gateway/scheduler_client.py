"""The schedulers, over the wire: whoever leads is asked."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from halogen.v1 import scheduler_pb2 as pb
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.background import background
from services.common.deadline import Deadline
from services.common.errors import Unavailable
from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.rpc.client import ChannelPool
from services.common.ticket import Ticket
from services.gateway.leader import Leader, Leaders
from services.gateway.peer_failure import PEER_GONE, peer_failure
from services.gateway.ports import Grant, TokenRequest

PATIENCE_S: Final = 2.0  # with a scheduler that is gone and no other in sight
_RETRY_AFTER_S: Final = 0.5
_PEER: Final = "the scheduler"
# What a scheduler says, or its connection, when the next one should be asked.
_ENDED: Final = frozenset({"NOT_LEADER", "STOPPING", PEER_GONE})


class SchedulerClient:
    """Implements `ports.Scheduler`.

    Args:
        channels: Kept by the process.
        leaders: Whom to ask.
    """

    def __init__(self, channels: ChannelPool, leaders: Leaders) -> None:
        self._channels = channels
        self._leaders = leaders

    async def grant(self, request: TokenRequest, ticket_id: TicketId, timeout_s: float | None) -> Grant:
        """Waits for the request's turn, at the next leader again whenever one takes over."""
        asked, deadline, term = _asked(request, ticket_id), Deadline.after(timeout_s), 0
        while True:
            leader = await self._leader(term, deadline)
            try:
                return await self._ask(leader, asked, deadline)
            except Unavailable as failure:
                if failure.reason not in _ENDED:
                    raise
            term = leader.term

    async def release(self, ticket_id: TicketId, timeout_s: float) -> None:
        leader = self._leaders.current
        if leader is None:
            raise _nobody()
        stub = SchedulerServiceStub(self._channels.get(leader.address))
        try:
            await stub.ReleaseTicket(pb.ReleaseTicketRequest(ticket_id=ticket_id), timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise peer_failure(failure, _PEER) from failure

    async def _leader(self, term: int, deadline: Deadline) -> Leader:
        """Whoever leads after `term`; waits a moment for it.

        Raises:
            DeadlinePassed: The caller's time was over first.
            Unavailable: Nobody leads.
        """
        left_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(PATIENCE_S if left_s is None else min(PATIENCE_S, left_s)):
                return await self._leaders.after(term)
        except TimeoutError:
            deadline.remaining_s()
            raise _nobody() from None

    async def _ask(self, leader: Leader, asked: pb.GrantTicketRequest, deadline: Deadline) -> Grant:
        """Asks one leader, and leaves it as soon as another leads: it may be frozen, or cut off."""
        stub = SchedulerServiceStub(self._channels.get(leader.address))
        try:
            async with asyncio.timeout(None) as limit, background(self._end_with(leader, limit)):
                answer = await stub.GrantTicket(asked, timeout=deadline.remaining_s())
        except TimeoutError:
            raise _nobody() from None
        except grpc.aio.AioRpcError as failure:
            raise peer_failure(failure, _PEER) from failure
        return _grant(answer)

    async def _end_with(self, leader: Leader, limit: asyncio.Timeout) -> None:
        await self._leaders.after(leader.term)
        limit.reschedule(asyncio.get_running_loop().time())


def _asked(request: TokenRequest, ticket_id: TicketId) -> pb.GrantTicketRequest:
    return pb.GrantTicketRequest(
        request_id=request.request_id,
        artifact_id=request.artifact_id,
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=request.sampling.max_tokens,
        ticket_id=ticket_id,
        model=request.route.model,
        cohort=request.route.cohort,
        revision=request.route.revision,
    )


def _grant(answer: pb.GrantTicketResponse) -> Grant:
    ticket = Ticket(
        id=TicketId(answer.ticket.ticket_id),
        engine_instance_id=InstanceId(answer.ticket.engine_instance_id),
        artifact_id=ArtifactId(answer.ticket.artifact_id),
        reserved_bytes=answer.ticket.reserved_bytes,
        term=answer.ticket.term,
        expire_time_ns=answer.ticket.expire_time.ToNanoseconds(),
    )
    return Grant(ticket, answer.ticket.mac, ProcessId(answer.engine_id), answer.engine_address)


def _nobody() -> Unavailable:
    return Unavailable("no scheduler leads now; try again", reason="NOT_LEADER", retry_after_s=_RETRY_AFTER_S)
