"""Many streams at once: nothing lost, nothing changed, every byte accounted for, long prompts no one's burden."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from services.common.client import Client, CompletionStream
from services.common.completion import Chunk
from services.common.errors import HalogenError, InternalError
from services.engine.engine import Engine
from services.engine.loaded_model import ModelOnArena
from services.engine.ragged import Ragged
from services.scheduler.ledger import Ledger
from tests.brake import Brake
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
Prompt = list[int]

STREAMS = 64
BLOCK_BYTES = 4 * 2 * 2 * 16 * 32 * 2  # stories: layers, K and V, kv heads, tokens, head size, bf16
ARENA = {"kv_arena_bytes": 64 * BLOCK_BYTES, "check_every_step": True}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """Counts the checks of conservation: the arena's after every step, the ledger's after every change of it."""
    counts: collections.Counter[str] = collections.Counter()
    check, put, drop = Engine.check, Ledger._put, Ledger._drop

    def check_arena(self: Engine) -> None:
        check(self)
        counts["arena"] += 1
        counts["most arena bytes"] = max(counts["most arena bytes"], self.arena.pool.used_bytes)

    def put_checked(self: Ledger, *args: Any) -> Any:
        result = put(self, *args)
        self.check()
        counts["ledger"] += 1
        return result

    def drop_checked(self: Ledger, *args: Any) -> Any:
        result = drop(self, *args)
        self.check()
        counts["ledger"] += 1
        return result

    monkeypatch.setattr(Engine, "check", check_arena)
    monkeypatch.setattr(Ledger, "_put", put_checked)
    monkeypatch.setattr(Ledger, "_drop", drop_checked)
    return counts


def prompts(seed: int) -> list[tuple[Prompt, int]]:
    """Prompts of 3 to 120 tokens, and how long their answers shall be."""
    chance = random.Random(seed)
    return [
        ([chance.randrange(1, 512) for _ in range(chance.randint(3, 120))], chance.randint(8, 48))
        for _ in range(STREAMS)
    ]


async def answer(client: Client, prompt: Prompt, tokens: int) -> tuple[int, ...]:
    completion = await client.generate(
        prompt, max_tokens=tokens, temperature=0, ignore_eos=True, timeout_s=240
    ).complete()
    assert tokens == len(completion.token_ids)
    return completion.token_ids


async def collect(stream: CompletionStream, seen: list[Chunk]) -> None:
    async for chunk in stream:
        seen.append(chunk)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def until_somebody_waits(system: Cluster) -> None:
    async with asyncio.timeout(60):
        while not (await system.occupancy()).queued_requests:
            pass


async def run_load(system: Cluster, artifact: Path, held: Callable[[], AbstractContextManager[None]]) -> None:
    """While the engine is held, a queue forms whoever is faster."""
    await system.publish("stories", artifact)
    asked = prompts(seed=11)
    async with system.client() as client:
        one_by_one = [await answer(client, *each) for each in asked]
        async with asyncio.TaskGroup() as group:
            with held():
                together = [group.create_task(answer(client, *each)) for each in asked]
                await until_somebody_waits(system)
    assert one_by_one == [task.result() for task in together]
    occupancy = await system.occupancy()
    [engine] = occupancy.engines
    print(f"peak occupancy {engine.peak_occupancy:.3f}, peak queue {occupancy.peak_queued_requests}")
    assert engine.peak_occupancy >= 0.90
    assert occupancy.peak_queued_requests > 0
    assert (0, 0, 0) == (engine.promised_bytes, engine.tickets, occupancy.queued_requests)


async def test_64_streams_at_once_answer_as_one_by_one(
    start: Start, stories: dict[str, Path], brake: Brake, checks: collections.Counter[str]
) -> None:
    """Full arena, waiting queue, the same ids; arena and ledger conserve every byte at every step."""
    await run_load(await start("in_process", engine=ARENA), stories["stories-v1"], brake.held)
    print("checks of conservation:", dict(checks))
    assert checks["arena"] >= STREAMS
    assert checks["ledger"] >= 4 * STREAMS


async def test_64_streams_over_real_processes(start: Start, stories: dict[str, Path]) -> None:
    """The same with every hop a wire."""
    system: Cluster = await start("processes", engine=ARENA)
    await run_load(system, stories["stories-v1"], lambda: stopped(system.pids()["engine"]))


async def test_a_long_prompt_delays_a_running_stream_by_one_chunk(
    start: Start, long_context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While 1,500 tokens of prompt are computed, a running stream gets a token in every step, none over a chunk."""
    chunk, steps = 256, list[tuple[int, int]]()
    forward = ModelOnArena.forward

    def watched(self: ModelOnArena, step: Ragged) -> Any:
        sizes = [int(end - begin) for begin, end in zip(step.rows[:-1], step.rows[1:], strict=True)]
        steps.append((sizes.count(1), sum(size for size in sizes if size > 1)))
        return forward(self, step)

    system: Cluster = await start("in_process", engine={"chunk_tokens": chunk})
    await system.publish("long", long_context)
    monkeypatch.setattr(ModelOnArena, "forward", watched)
    async with system.client() as client:
        running = client.generate([5] * 8, max_tokens=2_000, temperature=0, ignore_eos=True)
        async with running:
            chunks = aiter(running)
            await anext(chunks)
            await client.generate([9] * 1500, max_tokens=2, temperature=0, ignore_eos=True).complete()
            rest = [chunk async for chunk in chunks]
    assert rest[-1].usage is not None
    assert 2_000 == rest[-1].usage.completion_tokens
    with_prompt = [decodes for decodes, prefill in steps if prefill > chunk // 2]
    print("steps with a chunk of the long prompt:", len(with_prompt), "each with decodes:", with_prompt)
    assert -(-1500 // chunk) <= len(with_prompt) + 1
    assert all(decodes >= 1 for decodes in with_prompt)
    assert max(prefill for _, prefill in steps) <= chunk


async def test_s_d7_an_engine_that_fails_in_step_n_ends_in_an_error(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial output, then INTERNAL, never a finish_reason and never OK; the engine serves the next request.

    Turns red when: Stepper._compute swallows the failure and ends its jobs with FinishReason.STOP.
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    forward, left = ModelOnArena.forward, [5]

    def failing(self: ModelOnArena, step: Ragged) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("injected")
        return forward(self, step)

    monkeypatch.setattr(ModelOnArena, "forward", failing)
    async with system.client() as client:
        seen: list[Chunk] = []
        with pytest.raises(HalogenError) as raised:
            await collect(client.generate("Once upon a time", max_tokens=40, ignore_eos=True), seen)
        assert InternalError is type(raised.value)
        assert 4 == sum(len(chunk.token_ids) for chunk in seen)
        assert {None} == {chunk.finish_reason for chunk in seen}
        after = await client.generate("Once upon a time", max_tokens=3, ignore_eos=True).complete()
    assert 3 == len(after.token_ids)
    assert 0 == (await system.occupancy()).engines[0].promised_bytes
