"""What an engine tells of its requests, read from the engine itself."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from services.common.errors import HalogenError
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.metrics import export
from tests.scrape import read
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request

NO_GENERATIONS: Any = SimpleNamespace(
    records=(), desired={}, actual={}, weights_bytes={}, layouts={}, conflicts=0
)


async def test_gauges_tell_what_runs_and_what_waits_for_what() -> None:
    """Beyond the batch, or behind a chunk; all are zero when all is over, and every request ended once."""
    registry, gate = CollectorRegistry(), Gate()
    model = CountingModel(before=gate)
    async with Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=1, max_batch=2) as engine:
        export(registry, engine, NO_GENERATIONS, "test/1")
        async with contextlib.AsyncExitStack() as scope:
            for name in ("a", "b", "c"):
                asked = request(name, prompt=range(1, 9), max_tokens=2)
                await scope.enter_async_context(engine.run(generation(model), asked))
            await asyncio.to_thread(gate.reached.acquire)
            gate.open()
            await asyncio.to_thread(gate.reached.acquire)  # the first chunk of the first request is computed
            told = read(registry)
            assert 1 == told.value("halogen_num_requests_running")
            assert {"batch": 1, "chunk": 1} == told.by("halogen_num_requests_waiting", "reason")
            assert 0 < told.value("halogen_kv_cache_usage_perc") < 1
        gate.open(100)
        await ended(engine, 3)
    told = read(registry)
    assert (0, 0, 0.0) == (
        told.value("halogen_num_requests_running"),
        told.value("halogen_num_requests_waiting"),
        told.value("halogen_kv_cache_usage_perc"),
    )
    assert {"cancelled": 3} == told.by("halogen_engine_requests_total", "finish_reason")
    assert 3 == told.value("halogen_engine_requests_accepted_total")


async def test_the_arena_is_told_in_bytes_and_extents() -> None:
    """Its size, what is used, free and kept, and in how many stretches of which size; a page's block is counted along."""
    registry = CollectorRegistry()
    arena = Arena(64 * BLOCK_BYTES)
    async with Engine(arena, chunk_tokens=4, max_batch=2) as engine:
        export(registry, engine, NO_GENERATIONS, "test/1")
        with arena.pool.reserve(BLOCK_BYTES, 1), arena.pool.reserve(BLOCK_BYTES, 20) as reservation:
            page = reservation.part_with(reservation.take(), lambda: None)
            page.unpin()
            told = read(registry)
    sizes = [told.value(f"halogen_kv_{name}_bytes") for name in ("arena", "cache_used", "cache_free")]
    assert [64 * BLOCK_BYTES, 20 * BLOCK_BYTES, 43 * BLOCK_BYTES] == sizes
    assert BLOCK_BYTES == told.value("halogen_kv_cache_reclaimable_bytes")
    assert {"16": 1, "256": 1} == told.by("halogen_kv_cache_extents", "tokens")


async def test_tokens_are_counted_where_they_are_computed() -> None:
    """Prompt and generated tokens, and the size of every step; a failed step computes nothing."""
    registry = CollectorRegistry()

    def fail(step: int) -> None:
        if step == 4:
            raise RuntimeError("injected")

    async with Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=4, max_batch=2) as engine:
        export(registry, engine, NO_GENERATIONS, "test/1")
        model = CountingModel(before=fail)
        for name in ("good", "bad"):
            with contextlib.suppress(HalogenError):
                async with engine.run(generation(model), request(name, range(1, 7), 3)) as stream:
                    async for _ in stream:
                        pass
    told = read(registry)
    assert (6, 3) == (
        told.value("halogen_prompt_tokens_total"),
        told.value("halogen_generation_tokens_total"),
    )
    assert {"length": 1, "step_failed": 1} == told.by("halogen_engine_requests_total", "finish_reason")
    assert {"1.0": 2, "8.0": 4} == {
        bound: times
        for bound, times in told.by("halogen_iteration_tokens_bucket", "le").items()
        if bound in {"1.0", "8.0"}
    }


async def test_prefixes_are_counted_in_tokens_and_what_is_kept_in_bytes() -> None:
    """A prompt of 40 tokens twice: 80 looked up, 32 found; three pages are kept, of which the answer fills one."""
    registry = CollectorRegistry()
    async with Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=64, max_batch=2) as engine:
        export(registry, engine, NO_GENERATIONS, "test/1")
        for _ in range(2):
            asked = request(prompt=range(40), max_tokens=9, cache_salt=b"")
            async with engine.run(generation(CountingModel()), asked) as stream:
                async for _ in stream:
                    pass
    told = read(registry)
    assert (80, 32, 3 * BLOCK_BYTES) == (
        told.value("halogen_prefix_cache_queries_total"),
        told.value("halogen_prefix_cache_hits_total"),
        told.value("halogen_kv_cache_reclaimable_bytes"),
    )


async def ended(engine: Engine, requests: int) -> None:
    """Returns when so many have ended: the step loop tells of it in the loop's own turns."""
    async with asyncio.timeout(10):
        while sum(engine.ended.values()) < requests:
            await asyncio.to_thread(lambda: None)
