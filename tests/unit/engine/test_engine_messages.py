"""What a step gave one stream is one message, however much it is, and however long its reader takes."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

from halogen.v1 import engine_pb2, types_pb2
from services.common.ids import InstanceId, ProcessId
from services.engine.generations import Borrowed
from services.engine.job import Job
from services.engine.servicer import EngineServicer
from services.engine.stepper import Update
from services.engine.timeline import StepTimes
from tests.unit.engine.fakes import CountingModel, generation
from tests.unit.engine.random_moves import Setting
from tests.unit.engine.watched_engine import SMALLEST_BLOCK, WatchedEngine

Message = engine_pb2.GenerateTokensResponse


class World:
    """An engine whose steps come by hand, asked as its callers ask it but for the sockets."""

    def __init__(self) -> None:
        model = CountingModel()
        model.block_bytes = SMALLEST_BLOCK
        made = generation(model)

        @contextlib.contextmanager
        def borrow(_artifact_id: str) -> Iterator[Borrowed]:
            with made.use() as used:
                yield Borrowed(made, used)

        self.engine = WatchedEngine.of(
            Setting(
                has_thread=False,
                blocks=32,
                chunk_tokens=64,
                max_batch=8,
                swap_blocks=0,
                is_copying_cheap=False,
            )
        )
        self._servicer = EngineServicer(
            engine=self.engine,
            generations=types.SimpleNamespace(borrow=borrow),  # type: ignore[arg-type]
            gate=types.SimpleNamespace(redeem=lambda *_: None),  # type: ignore[arg-type]
            engine_id=ProcessId("e"),
            instance_id=InstanceId("e-1"),
            runtime_build="",
        )

    def ask(self, name: str, max_tokens: int) -> AsyncIterator[Message]:
        """The messages of one answer to [1, 2, 3]."""
        sampling = types_pb2.SamplingParams(temperature=0, top_k=0, top_p=1, seed=0, max_tokens=max_tokens)
        asked = engine_pb2.GenerateTokensRequest(
            ticket=types_pb2.Ticket(ticket_id=name, reserved_bytes=4 * SMALLEST_BLOCK),
            request_id=name,
            prompt_token_ids=[1, 2, 3],
            sampling=sampling,
        )
        context: Any = types.SimpleNamespace(time_remaining=lambda: None)
        return self._servicer.GenerateTokens(asked, context)

    async def step(self) -> None:
        """One step, after which readers have what there is for them."""
        await self.engine.one_step()
        await others()

    def job(self, name: str) -> Job:
        (found,) = [job for job in self.engine._runs if job.sequence.request.id == name]
        return found


async def others() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def read(messages: AsyncIterator[Message], into: list[list[int]]) -> None:
    async for message in messages:
        into.append(list(message.token_ids))


async def test_a_step_is_one_message_for_each_stream() -> None:
    """Two answers side by side: every step gives each of them a token, and a message."""
    world = World()
    first: list[list[int]] = []
    second: list[list[int]] = []
    async with world.engine, asyncio.TaskGroup() as group:
        group.create_task(read(world.ask("a", 3), first))
        group.create_task(read(world.ask("b", 4), second))
        await others()
        for tokens in (1, 2, 3):
            await world.step()
            assert (tokens, tokens) == (len(first), len(second))
        await world.step()
    assert ([[4], [5], [6]], [[4], [5], [6], [7]]) == (first, second)


async def test_all_that_a_step_gave_a_stream_is_one_message() -> None:
    """Two tokens of one step, with another stream's between them, are one message; what the next step gives is another.

    Fault injection: turns red when TokenStream._take gives a token at a time.
    """
    world = World()
    first: list[list[int]] = []
    second: list[list[int]] = []
    async with world.engine, asyncio.TaskGroup() as group:
        group.create_task(read(world.ask("a", 1), first))
        group.create_task(read(world.ask("b", 1), second))
        await others()
        a, b = world.job("a"), world.job("b")
        world.engine._deliver([Update(a, 40), Update(b, 41), Update(a, 42)], StepTimes(1, 2))
        await others()
        assert ([[40, 42]], [[41]]) == (first, second)
        await world.step()
    assert ([[40, 42], [4]], [[41], [4]]) == (first, second)


async def test_what_a_slow_reader_has_missed_is_one_message() -> None:
    """Five steps beside one that reads nothing, then it reads: nothing is lost, and nothing comes one by one.

    Fault injection: turns red when TokenStream._take gives a token at a time.
    """
    world = World()
    async with world.engine:
        messages = world.ask("a", 8)
        began = asyncio.ensure_future(anext(messages))
        await others()
        await world.step()
        assert [4] == list((await began).token_ids)
        for _ in range(5):
            await world.step()
        missed = await anext(messages)
        for _ in range(2):
            await world.step()
        last = await anext(messages)
        assert ([5, 6, 7, 8, 9], [10, 11]) == (list(missed.token_ids), list(last.token_ids))
        assert types_pb2.FINISH_REASON_LENGTH == last.finish_reason
        assert [] == [message async for message in messages]
