"""However a request ends, everything that it held is given back at once, and its id can be used again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.common.client import Client, CompletionStream
from services.common.completion import Chunk, FinishReason
from services.common.errors import AlreadyExists, Cancelled, DeadlinePassed, InvalidRequest, Overloaded
from services.common.rpc.server import RpcServer
from services.engine.engine import Engine
from services.engine.loaded_model import ModelOnArena
from services.engine.ragged import Ragged
from services.gateway.running import EARLY_S
from tests.brake import Brake
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

PROMPT = [7] * 9
LONG = 1_500  # tokens: not done when the first have come
ENDLESS = 6_000  # tokens: seconds of work, not done while other processes are asked
BLOCK_BYTES = 2 * 2 * 2 * 16 * 16 * 2  # long_context: layers, K and V, kv heads, tokens, head size, bf16
ONE_SLOT = {"kv_arena_bytes": 100 * BLOCK_BYTES}  # LONG tokens need 95 blocks
ONE_ENDLESS_SLOT = {"kv_arena_bytes": 400 * BLOCK_BYTES}  # ENDLESS tokens need 376


class Insides(NamedTuple):
    """The engines and servers of a system in this process."""

    engines: list[Engine]
    servers: list[RpcServer]

    def in_flight(self) -> int:
        return sum(server.in_flight.count for server in self.servers)


@pytest.fixture
def insides(monkeypatch: pytest.MonkeyPatch) -> Insides:
    """Fills as the system is started."""
    seen = Insides([], [])
    for kind, found in ((Engine, seen.engines), (RpcServer, seen.servers)):
        _remember(monkeypatch, kind, found)
    return seen


def _remember(monkeypatch: pytest.MonkeyPatch, kind: Any, found: list[Any]) -> None:
    make = kind.__init__

    def made(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        found.append(self)

    monkeypatch.setattr(kind, "__init__", made)


def long_answer(
    client: Client, request_id: str = "", *, max_tokens: int = LONG, **options: Any
) -> CompletionStream:
    return client.generate(
        PROMPT, request_id=request_id, max_tokens=max_tokens, temperature=0, ignore_eos=True, **options
    )


async def until_nothing_is_held(system: Cluster) -> None:
    """Returns when no byte is promised, no ticket open and nobody waiting, by the scheduler's own books."""
    async with asyncio.timeout(30):
        while True:
            occupancy = await system.occupancy()
            [engine] = occupancy.engines
            if (0, 0, 0) == (engine.promised_bytes, engine.tickets, occupancy.queued_requests):
                return


async def until_queued(system: Cluster, requests: int) -> None:
    async with asyncio.timeout(30):
        while (await system.occupancy()).queued_requests != requests:
            pass


async def collect(stream: CompletionStream, head: asyncio.Event | None = None) -> list[Chunk]:
    chunks = []
    async with stream:
        async for chunk in stream:
            chunks.append(chunk)
            if head is not None:
                head.set()
    return chunks


async def test_s_a1_s_a2_a_client_that_leaves_stops_the_engine(
    start: Start, insides: Insides, long_context: Path
) -> None:
    """Closing the stream is all it takes, no second call: blocks come back and the engine computes no more steps.

    Fault injection: turns red when Engine.run does not abort its job.
    """
    system: Cluster = await start("in_process")
    await system.publish("long", long_context)
    [engine] = insides.engines
    async with system.client() as client:
        async with long_answer(client) as stream:
            await anext(aiter(stream))
        await until_nothing_is_held(system)
        assert 0 == engine.arena.pool.used_bytes
        steps = engine.steps
        assert steps < LONG
        await client.generate(PROMPT, max_tokens=2, ignore_eos=True).complete()
        assert steps + 2 == engine.steps


async def test_s_a4_an_id_that_was_aborted_in_the_queue_can_be_used_again(
    start: Start, driver: str, long_context: Path
) -> None:
    """The engine is full; X waits, is aborted, and X is asked for anew: it is taken, and served in its turn.

    Fault injection: turns red when Running.admit does not free the id, or the desk keeps the one that waited.
    """
    system: Cluster = await start(driver, engine=ONE_ENDLESS_SLOT)
    await system.publish("long", long_context)
    async with system.client() as client, asyncio.TaskGroup() as group:
        head = asyncio.Event()
        first = group.create_task(collect(long_answer(client, "first", max_tokens=ENDLESS), head))
        await asyncio.wait_for(head.wait(), 30)
        waiting = group.create_task(collect(long_answer(client, "X", max_tokens=ENDLESS)))
        await until_queued(system, 1)
        assert await client.abort("X")
        assert [FinishReason.ABORTED] == [chunk.finish_reason for chunk in await waiting]
        again = group.create_task(collect(client.generate(PROMPT, request_id="X", max_tokens=2)))
        await client.abort("first")
        assert FinishReason.LENGTH is (await again)[-1].finish_reason
        assert FinishReason.ABORTED is (await first)[-1].finish_reason
    await until_nothing_is_held(system)


async def test_s_a5_an_empty_id_aborts_nobody(start: Start, long_context: Path) -> None:
    """INVALID_ARGUMENT, and the five that run go on to their ends.

    Fault injection: turns red when Running.abort takes an empty id.
    """
    system: Cluster = await start("in_process")
    await system.publish("long", long_context)
    async with system.client() as client, asyncio.TaskGroup() as group:
        heads = [asyncio.Event() for _ in range(5)]
        running = [group.create_task(collect(long_answer(client), head)) for head in heads]
        for head in heads:
            await asyncio.wait_for(head.wait(), 30)
        with pytest.raises(InvalidRequest):
            await client.abort("")
    assert [FinishReason.LENGTH] * 5 == [task.result()[-1].finish_reason for task in running]


async def test_s_a7_an_abort_from_elsewhere_ends_the_stream(
    start: Start, driver: str, long_context: Path
) -> None:
    """The reader is woken with its last chunk, which says what was used.

    Fault injection: turns red when Outbox.abort does not set the news.
    """
    system: Cluster = await start(driver)
    await system.publish("long", long_context)
    async with system.client() as client, system.client() as other, asyncio.TaskGroup() as group:
        head = asyncio.Event()
        reading = group.create_task(collect(long_answer(client, "X", max_tokens=ENDLESS), head))
        await asyncio.wait_for(head.wait(), 30)
        assert (True, False) == (await other.abort("X"), await other.abort("nobody"))
        last = (await asyncio.wait_for(reading, 30))[-1]
    assert FinishReason.ABORTED is last.finish_reason
    assert last.usage is not None
    assert 0 < last.usage.completion_tokens < ENDLESS
    await until_nothing_is_held(system)


async def test_s_g2_an_id_in_use_is_refused_and_harms_nobody(
    start: Start, driver: str, long_context: Path
) -> None:
    """ALREADY_EXISTS to the second; the first gets all of its tokens.

    Fault injection: turns red when Running.admit takes an id that is in use.
    """
    system: Cluster = await start(driver)
    await system.publish("long", long_context)
    async with system.client() as client, asyncio.TaskGroup() as group:
        head = asyncio.Event()
        first = group.create_task(collect(long_answer(client, "X", max_tokens=ENDLESS), head))
        await asyncio.wait_for(head.wait(), 30)
        with pytest.raises(AlreadyExists):
            await long_answer(client, "X").complete()
        assert FinishReason.LENGTH is (await first)[-1].finish_reason


async def test_s_b10_expired_work_never_starts(
    start: Start, insides: Insides, brake: Brake, long_context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot and fifty requests: when their deadline has passed, none but the first has had a step.

    Fault injection: turns red when TicketDesk._wait leaves one that was cancelled in the queue.
    """
    begun: list[int] = []
    forward = ModelOnArena.forward

    def counted(model: ModelOnArena, step: Ragged) -> Any:
        begun.append(len(step.rows))
        return forward(model, step)

    monkeypatch.setattr(ModelOnArena, "forward", counted)
    system: Cluster = await start("in_process", engine=ONE_SLOT)
    await system.publish("long", long_context)
    begun.clear()
    async with Client(system.gateway, max_tries=1) as client:
        with brake.held():
            asked = [long_answer(client, timeout_s=1.0).complete() for _ in range(50)]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        await until_nothing_is_held(system)
        assert [DeadlinePassed] * 50 == [type(outcome) for outcome in outcomes]
        assert len(begun) <= 1  # the one that the brake held
        await client.generate(PROMPT, max_tokens=2, ignore_eos=True).complete()
    assert len(begun) <= 3


async def test_s_f4_a_client_that_stops_reading_holds_nobody_up(start: Start, long_context: Path) -> None:
    """What is made for it is bounded, then it is given up: its bytes come back unread, others are served meanwhile.

    Fault injection: turns red when RpcServer is not given the configured slow_reader_s.
    """
    system: Cluster = await start("in_process", gateway={"slow_reader_s": 0.3})
    await system.publish("long", long_context)
    async with Client(system.gateway, max_tries=1) as slow, system.client() as client:
        stream = slow.generate(PROMPT, request_id="x" * 128, max_tokens=32_000, ignore_eos=True)
        chunks = aiter(stream)
        await anext(chunks)
        answer = await client.generate(PROMPT, max_tokens=50, ignore_eos=True).complete()
        assert 50 == len(answer.token_ids)
        await until_nothing_is_held(system)
        seen: list[Chunk] = []
        with pytest.raises(Overloaded) as given_up:
            await read_on(chunks, seen)
    assert "SLOW_READER" == given_up.value.reason
    assert sum(len(chunk.token_ids) for chunk in seen) < 16_000


async def read_on(chunks: AsyncIterator[Chunk], seen: list[Chunk]) -> None:
    async for chunk in chunks:
        seen.append(chunk)


async def end_somehow(client: Client, name: str, chance: random.Random) -> None:
    """One request that is ended from outside at a random moment, in one of the ways there are."""
    stream = long_answer(client, name, timeout_s=chance.choice([None, chance.uniform(0.01, 0.6)]))
    reading = asyncio.ensure_future(collect(stream))
    await asyncio.wait({reading}, timeout=chance.uniform(0, 0.6))
    match chance.choice(["cancel", "abort", "abort twice", "both"]):
        case "cancel":
            reading.cancel()
        case "both":
            await asyncio.gather(client.abort(name), asyncio.to_thread(reading.cancel))
        case ways:
            for _ in ways.split():
                await client.abort(name)
    await asyncio.wait({reading}, timeout=60)
    if not reading.cancelled():
        assert isinstance(reading.exception(), DeadlinePassed | Cancelled | None)


@pytest.mark.parametrize("seed", [1, 2])
async def test_s_a13_200_streams_ended_at_random_moments_leave_nothing(
    start: Start, insides: Insides, long_context: Path, seed: int
) -> None:
    """Waiting, prefilling, decoding, finishing: 0 bytes, 0 tickets, 0 calls in flight, and every id is free.

    Fault injection: turns red when Completions._attempt gives no ticket back.
    """
    system: Cluster = await start(
        "in_process",
        engine={"kv_arena_bytes": 1_000 * BLOCK_BYTES, "check_every_step": True, "ticket_ttl_s": 300},
        scheduler={"ticket_ttl_s": 300},  # no ticket is given back by its expiry
    )
    await system.publish("long", long_context)
    chance = random.Random(seed)
    names = [f"r{number}" for number in range(200)]
    async with Client(system.gateway, max_tries=1) as client:
        await asyncio.gather(*(end_somehow(client, name, chance) for name in names))
        await until_nothing_is_held(system)
        assert (0, 0) == (insides.in_flight(), insides.engines[0].arena.pool.used_bytes)
        await asyncio.sleep(EARLY_S)  # an abort of what never came is remembered for that long
        await use_again(client, names)


async def use_again(client: Client, names: list[str]) -> None:
    """Every one of the ids is taken, and served to its end."""
    answers = [
        client.generate(PROMPT, request_id=name, max_tokens=1, ignore_eos=True).complete() for name in names
    ]
    assert {FinishReason.LENGTH} == {answer.finish_reason for answer in await asyncio.gather(*answers)}


async def test_s_a1_50_killed_client_processes_leave_nothing(start: Start, long_context: Path) -> None:
    """SIGKILL in the middle of their answers: 0 bytes promised, 0 tickets, and their ids are free.

    Fault injection: turns red when Completions.stream does not end its work as its generator is closed.
    """
    system: Cluster = await start("processes")
    await system.publish("long", long_context)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.doomed_clients", system.gateway, "50"],
        stdout=subprocess.PIPE,
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
    )
    pids: list[int] = []
    try:
        assert launcher.stdout is not None
        while len(pids) < 50:
            pids.append(int(await asyncio.to_thread(launcher.stdout.readline)))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(launcher.communicate)
    await until_nothing_is_held(system)
    async with Client(system.gateway, max_tries=1) as client:
        await use_again(client, [f"k{number}" for number in range(50)])
    await until_nothing_is_held(system)
