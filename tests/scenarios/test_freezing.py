"""An engine that freezes gets no more requests, nobody waits for it for ever, and it is used again when it moves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.client import Client
from services.common.errors import HalogenError, Unavailable
from services.common.rpc.client import connect
from tests.brake import Brake
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

PROMPT = [7] * 9
STREAMS = 8
LONG = 1_500  # tokens: not done when the first have come
ENDLESS = 12_000  # tokens: seconds of work, not done when the process is stopped
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def health_of(address: str, name: str = "") -> AsyncIterator[Any]:
    """The next status that the server tells, as a function."""
    async with connect(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))

        async def following() -> int:
            status: int = (await asyncio.wait_for(watch.read(), 60)).status
            return status

        yield following
        watch.cancel()


async def test_s_e1_an_engine_whose_step_hangs_is_not_serving_until_it_moves(
    start: Start, brake: Brake, long_context: Path
) -> None:
    """Health flips for the engine and its model@cohort, new work is turned away, and what waited is answered.

    Fault injection: turns red when the engine's room does not hold back on a stall.
    """
    system: Cluster = await start("in_process", engine={"step_timeout_s": 0.3})
    await system.publish("long", long_context)
    async with (
        Client(system.gateway, max_tries=1) as client,
        health_of(system.engine) as engine,
        health_of(system.engine, "long@stable") as model,
        client.generate(PROMPT, max_tokens=LONG, ignore_eos=True) as stream,
    ):
        assert (SERVING, SERVING) == (await engine(), await model())
        await anext(aiter(stream))
        with brake.held():
            assert (NOT_SERVING, NOT_SERVING) == (await engine(), await model())
            with pytest.raises(Unavailable):
                await client.generate(PROMPT, max_tokens=1, timeout_s=30).complete()
        assert (SERVING, SERVING) == (await engine(), await model())
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert LONG == chunks[-1].usage.completion_tokens


async def test_s_e1_a_stopped_process_is_given_up_and_used_again(start: Start, long_context: Path) -> None:
    """SIGSTOP: its streams end in a status and the scheduler grants nothing on it; after SIGCONT it serves.

    Fault injection: turns red when keepalive is left out of rpc/options.py.
    """
    system: Cluster = await start("processes", engine={"lease_ttl_s": 2})
    await system.publish("long", long_context)
    pid = system.pids()["engine"]
    async with Client(system.gateway, max_tries=1) as client:
        streams = [client.generate(PROMPT, max_tokens=ENDLESS, ignore_eos=True) for _ in range(STREAMS)]
        begun = [aiter(stream) for stream in streams]
        await asyncio.gather(*(anext(chunks) for chunks in begun))
        os.kill(pid, signal.SIGSTOP)
        try:
            ends = await asyncio.wait_for(
                asyncio.gather(*(_exhaust(chunks) for chunks in begun), return_exceptions=True), 60
            )
            assert [True] * STREAMS == [isinstance(end, HalogenError) for end in ends]
            with pytest.raises(Unavailable):
                await client.generate(PROMPT, max_tokens=1, timeout_s=60).complete()
        finally:
            os.kill(pid, signal.SIGCONT)
    async with Client(system.gateway, max_tries=100) as client:
        assert 1 == len((await client.generate(PROMPT, max_tokens=1, timeout_s=60).complete()).token_ids)


async def _exhaust(chunks: AsyncIterator[Any]) -> None:
    async for _ in chunks:
        pass
