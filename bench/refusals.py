"""How soon a system that has all that it can take says so to whoever comes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Final

import grpc

from bench.ask import SMOLLM2_MIX, Size
from bench.figure import Figure
from halogen.v1 import scheduler_pb2
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.cli.run_state import Addresses
from services.common.client import Client
from services.common.errors import Overloaded
from services.common.rpc.client import connect

RUNNING: Final = 16
WAITING: Final = 16
ENGINE_FLAGS: Final = ("--max-concurrent-requests", str(RUNNING))
SCHEDULER_FLAGS: Final = ("--queue-requests", str(WAITING))
_REFUSALS: Final = 200
_MOST_MS: Final = 50.0
_SIZE: Final = Size(60, 1500)  # so long that nobody's place is given on meanwhile
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 60.0


async def refused_after(addresses: Addresses) -> Figure:
    """The p99, from the question to the refusal through gateway and scheduler, while every place is taken.

    Args:
        addresses: Of a system with the flags above, and SmolLM2.
    """
    chance = random.Random(9)
    async with Client(addresses.gateway, max_tries=1) as client, _all_places_taken(client, addresses, chance):
        times_s = [await _refused(client, chance) for _ in range(_REFUSALS)]
    p99_ms = 1e3 * sorted(times_s)[int(0.99 * _REFUSALS) - 1]
    return Figure(name="refused_p99_ms", value=p99_ms, unit="ms", goal=_MOST_MS, better="lower")


@contextlib.asynccontextmanager
async def _all_places_taken(
    client: Client, addresses: Addresses, chance: random.Random
) -> AsyncIterator[None]:
    """For the scope, as many run and as many wait as may."""
    async with asyncio.TaskGroup() as group, connect(addresses.scheduler) as channel:
        await _until(channel, running=0, waiting=0)
        holders = [group.create_task(_answer(client, chance)) for _ in range(RUNNING)]
        await _until(channel, running=RUNNING, waiting=0)
        holders += [group.create_task(_answer(client, chance)) for _ in range(WAITING)]
        await _until(channel, running=RUNNING, waiting=WAITING)
        yield
        for holder in holders:
            holder.cancel()


async def _until(channel: grpc.aio.Channel, *, running: int, waiting: int) -> None:
    """Returns when so many have tickets and so many wait for them."""
    scheduler = SchedulerServiceStub(channel)
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = await scheduler.GetOccupancy(scheduler_pb2.GetOccupancyRequest())
            if (running, waiting) == (sum(each.tickets for each in seen.engines), seen.queued_requests):
                return
            await asyncio.sleep(_LOOK_S)


async def _answer(client: Client, chance: random.Random) -> None:
    asked = SMOLLM2_MIX.ask(chance, _SIZE)
    await client.generate(
        asked.prompt, max_tokens=asked.tokens, temperature=0, ignore_eos=True, timeout_s=None
    ).complete()


async def _refused(client: Client, chance: random.Random) -> float:
    """Seconds until one more is told that there is no place."""
    began_s = time.perf_counter()
    with contextlib.suppress(Overloaded):
        await _answer(client, chance)
        raise RuntimeError("it was let in: a place became free")
    return time.perf_counter() - began_s
