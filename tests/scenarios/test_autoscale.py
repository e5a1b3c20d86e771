"""An arena that grows with what is asked of it, as schedulers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.engine import arena_scaler, autoscale
from services.engine.memory_pressure import MemoryPressure, Signs
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

BLOCK_BYTES = 2 * 2 * 2 * 16 * 16 * 2  # long_context: layers, K and V, kv heads, tokens, head size, bf16
FLOOR_BYTES = 100 * BLOCK_BYTES
PATIENCE_S = 60


async def promised_from(system: Cluster, wanted: Callable[[int], bool]) -> None:
    """Waits until the scheduler may promise from an arena of such a size."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(wanted(engine.arena_bytes) for engine in (await system.occupancy()).engines):
            pass


async def test_an_arena_that_fills_up_grows_and_shrinks_again(
    start: Start, long_context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that the arena had no room for at all is answered beside one that fills it; afterwards it is as before.

    Fault injection: turns red when ArenaScaler.look tells nobody, or Delta's arena_bytes is left out on the wire.
    """
    monkeypatch.setattr(autoscale, "CALM_S", 0.2)
    monkeypatch.setattr(arena_scaler, "LOOK_S", 0.05)
    monkeypatch.setattr(MemoryPressure, "read", lambda _: Signs(0, 0))  # the machine may be busy with others
    engine = {
        "kv_arena_bytes": FLOOR_BYTES,
        "kv_block_pool_autoscale": True,
        "kv_block_pool_min_free_ratio": 0.0,
        "checkpoint": {"memory_guard_ratio": 1.0},
        "ticket_ttl_s": 0.2,
        "check_every_step": True,
    }
    system: Cluster = await start("in_process", engine=engine, scheduler={"ticket_ttl_s": 0.2})
    await system.publish("long", long_context)
    async with system.client() as client, asyncio.TaskGroup() as group:
        filling = client.generate([7] * 9, max_tokens=1_500, ignore_eos=True, timeout_s=PATIENCE_S)
        answer = group.create_task(filling.complete())
        await promised_from(system, lambda size: size > FLOOR_BYTES)
        more = client.generate([8] * 9, max_tokens=1_700, ignore_eos=True, timeout_s=PATIENCE_S)
        assert 1_700 == len((await more.complete()).token_ids)
        assert 1_500 == len((await answer).token_ids)
    await promised_from(system, lambda size: size == FLOOR_BYTES)
