"""An arena that is promised to more answers than it can hold, as clients see it."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from services.common.client import Client
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

BLOCK_BYTES = 2 * 2 * 2 * 16 * 16 * 2  # long_context: layers, K and V, kv heads, tokens, head size, bf16
BLOCKS = 64  # of the four times 33 that the long answers need
PATIENCE_S = 120.0


async def leave(client: Client, number: int) -> None:
    """Reads the beginning of an answer that might be long."""
    async with client.generate([number] * 9, max_tokens=500, ignore_eos=True, timeout_s=PATIENCE_S) as stream:
        async for _ in stream:
            break


async def answer(client: Client, number: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    options: dict[str, Any] = {
        "max_tokens": 512,
        "ignore_eos": True,
        "logprobs": True,
        "timeout_s": PATIENCE_S,
    }
    told = await client.generate([number] * 9, temperature=0.7, seed=number, **options).complete()
    return tuple(told.token_ids), tuple(told.logprobs)


async def test_s_b3_served_answers_that_outgrow_the_arena_are_those_of_an_arena_that_is_large_enough(
    start: Start, long_context: Path
) -> None:
    """S-B3: sixteen short answers let four long ones in at once; all come to their ends, as they would alone.

    Fault injection: turns red when schedulers promise the worst case (`EngineInstance.promised_bytes`).
    """
    engine = {"kv_arena_bytes": BLOCKS * BLOCK_BYTES, "check_every_step": True, "prefix_cache": False}
    system: Cluster = await start("in_process", engine=engine)
    await system.publish("long", long_context)
    async with system.client() as client:
        alone = [await answer(client, number) for number in range(1, 5)]
        for number in range(24):
            await leave(client, number)
        with capture_logs() as events:
            together = await asyncio.gather(*(answer(client, number) for number in range(1, 5)))
    assert alone == together
    times = collections.Counter(each["request_id"] for each in events if each["event"] == "request_preempted")
    assert times
    assert max(times.values()) <= 2
