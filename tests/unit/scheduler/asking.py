"""Questions to a scheduler over the wire, and waiting for what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halogen.v1 import scheduler_pb2 as pb
from services.common.errors import HalogenError
from services.common.rpc.status import from_rpc_error
from tests.unit.scheduler.builders import ARTIFACT

if TYPE_CHECKING:
    from halogen.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub as Scheduler


def ask(blocks: int = 1, *, prompt_tokens: int = 10) -> pb.GrantTicketRequest:
    """A request whose worst case is so many blocks."""
    return pb.GrantTicketRequest(
        request_id="r",
        artifact_id=ARTIFACT,
        prompt_tokens=prompt_tokens,
        max_tokens=blocks * 16 + 1 - prompt_tokens,
    )


async def refusal(
    call: grpc.aio.UnaryUnaryCall[pb.GrantTicketRequest, pb.GrantTicketResponse],
) -> HalogenError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return from_rpc_error(failure.value)


async def occupancy(scheduler: Scheduler) -> pb.GetOccupancyResponse:
    return await scheduler.GetOccupancy(pb.GetOccupancyRequest())


async def until(
    scheduler: Scheduler, reached: Callable[[pb.GetOccupancyResponse], bool]
) -> pb.GetOccupancyResponse:
    """Asks until the scheduler's state is as expected; each question is a round trip, so no sleep is needed."""
    async with asyncio.timeout(10):
        while not reached(state := await occupancy(scheduler)):
            pass
    return state


@contextlib.asynccontextmanager
async def health(channel: grpc.aio.Channel) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Waits for a health status on one open watch."""
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())

    async def become(status: int) -> None:
        while (await call.read()).status != status:
            pass

    try:
        yield become
    finally:
        call.cancel()
