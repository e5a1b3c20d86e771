"""Requests through the whole engine but for its wire: thread, arena, books, streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from services.common.errors import (
    AlreadyExists,
    Cancelled,
    DeadlinePassed,
    InternalError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.occupancy import Delta, Snapshot
from services.engine.stepper import FinishReason
from services.engine.token_stream import Piece, TokenStream
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request


def engine(blocks: int = 64, **changes: int) -> Engine:
    settings: dict[str, Any] = {"chunk_tokens": 512, "max_batch": 64, **changes}
    return Engine(Arena(blocks * BLOCK_BYTES), check_every_step=True, **settings)


async def collect(stream: TokenStream, tokens: list[int]) -> FinishReason | None:
    finish = None
    async for piece in stream:
        tokens += piece.token_ids
        finish = piece.finish
    return finish


async def read(stream: TokenStream) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    finish = await collect(stream, tokens)
    return tokens, finish


async def wait_idle(running: Engine) -> None:
    """Returns when nothing is under way, as the books tell it."""
    async with running.run(
        generation(CountingModel()), request("last", prompt=[1] * 600, max_tokens=60)
    ) as s:
        await read(s)


async def test_a_request_streams_its_tokens_and_gives_everything_back() -> None:
    """Tokens come in order, then the reason; blocks, generation and books are as before."""
    async with engine() as running:
        made = generation(CountingModel())
        async with running.run(made, request(prompt=(1, 2, 3), max_tokens=4)) as stream:
            assert ([4, 5, 6, 7], FinishReason.LENGTH) == await read(stream)
        assert (0, 0) == (running.arena.pool.used_bytes, made.users)
        running.check()


async def test_many_requests_at_once_share_steps() -> None:
    """Forty requests of 20 tokens take far fewer steps than tokens, and each gets its own answer."""
    async with engine(blocks=200) as running:
        made = generation(CountingModel())

        async def ask(i: int) -> list[int]:
            async with running.run(made, request(f"r{i}", prompt=(i,), max_tokens=20)) as stream:
                return (await read(stream))[0]

        answers = await asyncio.gather(*(ask(i) for i in range(40)))
        assert [[(i + 1 + k) % 64 for k in range(20)] for i in range(40)] == answers
        assert running.steps < 200
        running.check()


async def test_requests_over_the_bound_are_told_when_to_come_back() -> None:
    """The engine has the last word on how many callers' requests it takes at once; its own do not count.

    Fault injection: turns red when Engine.run leaves out `check_place`.
    """
    gate = Gate()
    async with engine(max_concurrent_requests=1) as running:
        made = generation(CountingModel(gate))
        async with running.run(made, request("one", max_tokens=1), TicketId("t1")) as stream:
            with pytest.raises(Overloaded, match="1 requests under way") as refused:
                async with running.run(made, request("two"), TicketId("t2")):
                    pass
            async with running.run(made, request("own", max_tokens=1)):
                gate.open(10)
                await read(stream)
        assert ("TOO_MANY_REQUESTS", True) == (refused.value.reason, bool(refused.value.retry_after_s))
        async with running.run(made, request("two", max_tokens=1), TicketId("t2")) as stream:
            assert [4] == (await read(stream))[0]


async def test_leaving_early_frees_the_blocks_within_two_steps() -> None:
    """The reader goes after its first piece; the request computes at most one more step."""
    gate = Gate()
    model = CountingModel(gate)
    async with engine() as running:
        made = generation(model)
        async with running.run(made, request(prompt=(1,), max_tokens=60)) as stream:
            gate.open()
            await anext(stream)
            await asyncio.to_thread(gate.reached.acquire)
            await asyncio.to_thread(gate.reached.acquire)  # the second step is under way
        gate.open(10)
        async with running.run(made, request("next", max_tokens=1)) as stream:
            await read(stream)
        assert [1, 1, 3] == [len(step.token_ids) for step in model.steps]
        assert 0 == running.arena.pool.used_bytes


async def test_a_deadline_ends_a_running_request() -> None:
    """What came before is delivered, then DEADLINE."""
    gate = Gate()
    async with engine() as running:
        asked = request(prompt=(1,), max_tokens=60, deadline=time.monotonic() + 0.05)
        async with running.run(generation(CountingModel(gate)), asked) as stream:
            gate.open()
            assert (2,) == (await anext(stream)).token_ids
            await asyncio.to_thread(gate.reached.acquire)
            await asyncio.to_thread(gate.reached.acquire)
            await asyncio.to_thread(time.sleep, 0.06)  # the deadline passes while the second step is held
            gate.open()
            assert (3,) == (await anext(stream)).token_ids
            with pytest.raises(DeadlinePassed):
                await anext(stream)


async def test_a_reader_that_is_behind_gets_all_it_missed_in_one_piece() -> None:
    """Nothing piles up but token ids, and nothing is lost."""
    async with engine() as running:
        async with running.run(generation(CountingModel()), request(prompt=(0,), max_tokens=50)) as stream:
            await wait_idle(running)  # the reader does something else meanwhile
            (piece,) = [piece async for piece in stream]
        assert Piece(tuple(range(1, 51)), FinishReason.LENGTH) == piece


async def test_s_d7_an_engine_failure_after_partial_output_is_raised_once_after_the_partial_output() -> None:
    """S-D7: the reader gets its tokens, then INTERNAL, exactly once; another request is served.

    Turns red when: TokenStream.__anext__ treats a failure as any other end (`if False:`).
    """

    faults = [RuntimeError("injected")]

    def fail_at_3(step: int) -> None:
        if step == 3 and faults:
            raise faults.pop()

    async with engine() as running:
        made = generation(CountingModel(fail_at_3))
        async with running.run(made, request(prompt=(1,), max_tokens=9)) as stream:
            tokens: list[int] = []
            with pytest.raises(InternalError):
                await collect(stream, tokens)
            assert [2, 3, 4] == tokens
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        async with running.run(made, request("next", prompt=(1,), max_tokens=2)) as stream:
            assert ([2, 3], FinishReason.LENGTH) == await read(stream)


async def test_a_full_arena_refuses_and_says_when_to_come_back() -> None:
    """The engine has the last word: worst cases that do not fit are refused before anything is held."""
    gate = Gate()
    async with engine(blocks=4) as running:
        made = generation(CountingModel(gate))
        async with running.run(made, request("first", prompt=[1] * 32, max_tokens=17)):  # 3 blocks
            with pytest.raises(Overloaded) as refused:
                async with running.run(made, request("second", prompt=[1] * 17)):  # 2 blocks
                    pass
            assert refused.value.retry_after_s
            running.check()
        gate.open(10)


async def test_s_b1_a_prompt_that_can_never_fit_is_refused_and_the_next_one_is_served() -> None:
    """S-B1: 1,002 tokens against 49 blocks of 16 fail at once; a 10-token prompt behind it completes.

    Turns red when: Engine._reserve does not compare with `pool.total_bytes` (`if False:`).
    """
    async with engine(blocks=49) as running:
        made = generation(CountingModel())
        with pytest.raises(InvalidRequest, match="KV memory"):
            async with running.run(made, request("large", prompt=[1] * 1002)):
                pass
        async with running.run(made, request("small", prompt=[1] * 10)) as stream:
            assert FinishReason.LENGTH is (await read(stream))[1]


async def test_a_request_id_in_use_is_refused_and_free_afterwards() -> None:
    """Two requests of one name cannot run together; one after the other can."""
    gate = Gate()
    async with engine() as running:
        made = generation(CountingModel(gate))
        async with running.run(made, request("same", max_tokens=1)) as stream:
            with pytest.raises(AlreadyExists):
                async with running.run(made, request("same")):
                    pass
            gate.open(2)
            await read(stream)
        async with running.run(made, request("same", max_tokens=1)) as stream:
            assert FinishReason.LENGTH is (await read(stream))[1]


async def test_tickets_are_on_the_books_for_exactly_as_long_as_their_blocks() -> None:
    """Opened, then prefilled, then closed; the watcher ends with no ticket."""
    gate = Gate()
    async with engine() as running, contextlib.aclosing(running.occupancy.watch()) as watch:
        assert Snapshot((), (), running.arena.pool.promisable_bytes) == await anext(watch)
        made, ticket = generation(CountingModel(gate)), TicketId("t")
        async with running.run(made, request(prompt=[1] * 20, max_tokens=1), ticket) as stream:
            opened = await anext(watch)
            assert isinstance(opened, Delta)
            assert [("t", 2 * BLOCK_BYTES, 20, False)] == [
                (t.id, t.reserved_bytes, t.prompt_tokens, t.prefill_started) for t in opened.tickets
            ]
            gate.open()
            await read(stream)
        closed = await anext(watch)
        assert isinstance(closed, Delta)
        assert ((), ("t",)) == (closed.tickets, closed.closed)


async def test_a_client_that_leaves_while_it_waits_is_dropped_too() -> None:
    """With room for one under way, the waiting one is cancelled and never computed."""
    gate = Gate()
    model = CountingModel(gate)
    async with engine(max_batch=1) as running:
        made = generation(model)
        async with running.run(made, request("runs", prompt=(1,), max_tokens=3)) as stream:
            async with running.run(made, request("waits", prompt=[9] * 5)) as waiting:
                pass
            gate.open(10)
            await read(stream)
            with pytest.raises(Cancelled):
                await anext(waiting)
        assert [1, 1, 1] == [len(step.token_ids) for step in model.steps]


async def test_stopping_ends_what_runs_and_refuses_what_comes() -> None:
    """No reader is left hanging by a stop."""
    gate = Gate()
    running = engine()
    async with running:
        made = generation(CountingModel(gate))
        run = running.run(made, request(prompt=(1,), max_tokens=60))
        stream = await run.__aenter__()
        await asyncio.to_thread(gate.reached.acquire)
        gate.open(1000)
    with pytest.raises(Unavailable):
        await read(stream)
    await run.__aexit__(None, None, None)
    with pytest.raises(Unavailable):
        async with running.run(made, request("late")):
            pass
    assert 0 == running.arena.pool.used_bytes


async def test_an_idle_engine_parks_its_thread() -> None:
    """No steps are counted and no processor time is spent while there is nothing to do."""
    async with engine() as running:
        async with running.run(generation(CountingModel()), request()) as stream:
            await read(stream)
        thread = next(t for t in threading.enumerate() if t is running._loop._thread)
        steps, before = running.steps, time.thread_time_ns()
        clock = time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0))
        await asyncio.sleep(0.05)
        assert steps == running.steps
        assert time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0)) - clock < 5_000_000
        assert before <= time.thread_time_ns()


async def test_an_idle_engine_keeps_no_model() -> None:
    """Nothing that was under way holds a model in memory once it has ended.

    Fault injection: turns red when StepLoop._run does what StepLoop._compute does.
    """
    async with engine() as running:
        model = CountingModel()
        gone = weakref.ref(model)
        async with running.run(generation(model), request()) as stream:
            await read(stream)
        del model, stream
        async with asyncio.timeout(10):
            while gone() is not None:
                await asyncio.to_thread(gc.collect)
