"""Real processes that are asked for three times what they can do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from services.common.client import Client
from services.common.errors import Overloaded
from tests.e2e.idle import anonymous_bytes
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
SECONDS: Final = float(os.environ.get("HALOGEN_OVERLOAD_S", "8"))
PLACES, WAITING = 1, 4  # few, and long answers: the engine is what is asked for too much, not who asks it
TOKENS: Final = 180
GROWTH_BYTES: Final = 48 << 20
PROMPT: Final = [3, 4, 5]


class Call(NamedTuple):
    """How long it took to the first token and to the end; or to the refusal, with the time to come back."""

    first_s: float
    whole_s: float
    retry_after_s: float | None = None


async def ask(client: Client) -> Call:
    began, first_s = time.monotonic(), 0.0
    try:
        tokens = 0
        async for chunk in client.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, timeout_s=240):
            first_s = first_s or time.monotonic() - began
            tokens += len(chunk.token_ids)
    except Overloaded as refusal:
        return Call(0, time.monotonic() - began, refusal.retry_after_s or 0)
    assert TOKENS == tokens
    return Call(first_s, time.monotonic() - began)


async def capacity(client: Client) -> float:
    """Requests a second, with every place taken and nobody waiting."""
    began = time.monotonic()
    for _ in range(4):
        await asyncio.gather(*(ask(client) for _ in range(PLACES)))
    return 4 * PLACES / (time.monotonic() - began)


async def open_loop(client: Client, per_s: float) -> list[Call]:
    """Asks at its own pace, whatever comes back."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        calls = []
        for number in range(int(per_s * SECONDS)):
            await asyncio.sleep(
                began + number / per_s - loop.time()
            )  # an arrival has its time, not its cause
            calls.append(group.create_task(ask(client)))
    return [call.result() for call in calls]


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("fleet")
async def test_s_b5_three_times_the_capacity_is_turned_away_at_the_door(
    start: Start, stories: dict[str, Path]
) -> None:
    """What is taken in is answered whole, the queue keeps its bound, the rest is told when to come back, and memory
    stays: the queue is all that grows.

    Fault injection: turns red when AdmissionQueue.can_push is always true.
    """
    system: Cluster = await start(
        "processes", scheduler={"queue_requests": WAITING}, engine={"max_concurrent_requests": PLACES}
    )
    await system.publish("stories", stories["stories-v1"])
    async with Client(system.gateway, max_tries=1) as client:
        per_s = await capacity(client)
        await open_loop(client, per_s)  # what grows once has grown
        before = anonymous_bytes(system.pids().values())
        calls = await open_loop(client, 3 * per_s)
        grown = anonymous_bytes(system.pids().values()) - before
    taken = [call for call in calls if call.retry_after_s is None]
    refused = [call for call in calls if call.retry_after_s is not None]
    occupancy = await system.occupancy()
    assert refused
    print(
        f"overload: 3 x {per_s:.1f}/s for {SECONDS:g} s: {len(taken)} answered, first token p99 "
        f"{p99([call.first_s for call in taken]):.2f} s; {len(refused)} refused, p99 "
        f"{1e3 * p99([call.whole_s for call in refused]):.0f} ms; memory {grown / 2**20:+.1f} MiB"
    )
    assert all(call.retry_after_s for call in refused)
    assert PLACES + WAITING <= len(taken)
    assert occupancy.peak_queued_requests <= WAITING
    assert (0, 0) == (occupancy.queued_requests, occupancy.engines[0].tickets)
    assert grown < GROWTH_BYTES
