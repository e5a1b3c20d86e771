"""A process that is asked to end finishes what it has begun, and turns nobody away without saying when to come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.client import Client, CompletionStream
from services.common.completion import Completion, FinishReason
from services.common.errors import DeadlinePassed, HalogenError, Unavailable
from services.common.rpc.client import connect
from tests.brake import Brake
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

ROLES = ("loader", "scheduler", "engine", "gateway")
STORY = "Once upon a time"
PROMPT = [7] * 9
LONG = 1_500  # tokens: far from done when the first have come
SHORTER = 600  # so are these, where all processes share two cores
STREAMS = 8
PATIENCE_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


@contextlib.asynccontextmanager
async def begun(client: Client, tokens: int = LONG) -> AsyncIterator[list[asyncio.Task[Completion]]]:
    """Eight streams of which each has given its first chunk, being read to their ends."""
    heads = [asyncio.Event() for _ in range(STREAMS)]

    async def read(stream: CompletionStream, head: asyncio.Event) -> Completion:
        async with stream:
            chunks = []
            async for chunk in stream:
                chunks.append(chunk)
                head.set()
            return Completion.of(chunks)

    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(
                read(client.generate(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True), head)
            )
            for head in heads
        ]
        for head in heads:
            await asyncio.wait_for(head.wait(), 60)
        yield reading


async def until_not_serving(address: str, reached: asyncio.Event) -> None:
    """Sets `reached` once it listens; returns when that server says that it is not ready any more."""
    async with connect(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert SERVING == (await watch.read()).status
        reached.set()
        assert SERVING != (await watch.read()).status
        watch.cancel()


async def until_refused(client: Client) -> Unavailable:
    """How a new request is refused; what came while the process withdrew itself waits behind the brake."""
    while True:
        try:
            await client.generate(PROMPT, max_tokens=4, timeout_s=5).complete()
        except Unavailable as refused:
            return refused
        except DeadlinePassed:
            continue


@pytest.mark.parametrize("role", ROLES)
async def test_s_e7_sigterm_finishes_8_streams_and_refuses_new_ones(
    start: Start, brake: Brake, long_context: Path, role: str
) -> None:
    """Not ready first; what runs ends as it would have; what comes gets UNAVAILABLE and when to try again.

    Fault injection: turns red when RpcServer.stop calls end_all() before wait_idle() (gateway, engine).
    """
    system: Cluster = await start("in_process", **{role: {"drain_s": PATIENCE_S}})
    await system.publish("long", long_context)
    async with Client(system.gateway, max_tries=1) as client:
        quiet = await client.generate(PROMPT, max_tokens=LONG, temperature=0, ignore_eos=True).complete()
        async with begun(client) as reading:
            with brake.held():
                watching = asyncio.Event()
                not_serving = asyncio.ensure_future(until_not_serving(getattr(system, role), watching))
                await watching.wait()
                ending = asyncio.ensure_future(system.end(role))
                await asyncio.wait_for(not_serving, 30)
                if role != "loader":  # which is not on the way of a request
                    assert (await asyncio.wait_for(until_refused(client), 60)).retry_after_s
                assert [False] * STREAMS == [task.done() for task in reading]
            assert [quiet.token_ids] * STREAMS == [(await task).token_ids for task in reading]
            assert 0 == await asyncio.wait_for(ending, PATIENCE_S)


async def test_r_e7_real_processes_finish_their_streams_and_exit_0(start: Start, long_context: Path) -> None:
    """SIGTERM of each in turn under 8 streams: all of them finish, and the system serves again afterwards.

    Fault injection: turns red when RpcServer.stop does not wait, or a process leaves by an exception.
    """
    system: Cluster = await start("processes", **{role: {"drain_s": PATIENCE_S} for role in ROLES})
    await system.publish("long", long_context)
    for role in ROLES:
        await asyncio.wait_for(until_served(system), 60)
        async with Client(system.gateway, max_tries=1) as client, begun(client, SHORTER) as reading:
            assert (role, 0) == (role, await asyncio.wait_for(system.end(role), 2 * PATIENCE_S))
        assert [(SHORTER, FinishReason.LENGTH)] * STREAMS == [
            (len(task.result().token_ids), task.result().finish_reason) for task in reading
        ]


async def until_served(system: Cluster) -> None:
    """Returns when the system answers, as it does again after one of its processes has been started anew."""
    async with Client(system.gateway, max_tries=1_000) as client:
        await client.generate([7], max_tokens=1, ignore_eos=True).complete()


@pytest.mark.parametrize("role", ["engine", "gateway"])
async def test_r_e3_under_load_there_is_only_unavailable_and_nothing_accepted_is_lost(
    start: Start, stories: dict[str, Path], role: str
) -> None:
    """Sixteen callers without pause while the process ends: each is answered in full, or told to come back.

    Fault injection: turns red when an engine that stops retires its generations before its streams have ended.
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    answered, refusals = 0, list[HalogenError]()

    async def call(client: Client) -> None:
        nonlocal answered
        while not any(isinstance(refusal, Unavailable) for refusal in refusals):
            try:
                answer = await client.generate(STORY, max_tokens=30, ignore_eos=True, timeout_s=60).complete()
            except HalogenError as failure:
                refusals.append(failure)
            else:
                assert 30 == len(answer.token_ids)
                answered += 1

    async with Client(system.gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
        calling = [group.create_task(call(client)) for _ in range(16)]
        while answered < len(calling):
            await asyncio.wait(calling, timeout=0.01)
        assert 0 == await asyncio.wait_for(system.end(role), 30)
    assert {Unavailable} == {type(refusal) for refusal in refusals}
    assert all(refusal.retry_after_s for refusal in refusals)
