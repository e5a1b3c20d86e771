"""Who waits for the arena's memory, and who passes meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import cast
from unittest import mock

import pytest

from services.common.errors import Overloaded
from services.common.ids import TicketId
from services.common.waiting_line import PATIENCE, Rank
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.loan import Loan
from services.engine.memory_queue import MemoryQueue
from services.engine.stepper import FinishReason
from services.engine.token_stream import TokenStream
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, generation, request
from tests.unit.engine.hand_loop import HandLoop

Ask = Callable[[str, int, int, int], AbstractAsyncContextManager[TokenStream]]


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Of sixteen blocks, whose steps the test makes."""
    with mock.patch("services.engine.engine.StepLoop", HandLoop):
        made = Engine(Arena(16 * BLOCK_BYTES), chunk_tokens=256, max_batch=64, check_every_step=True)
    yield made
    assert 0 == made.arena.pool.used_bytes


@pytest.fixture
def ask(engine: Engine) -> Ask:
    """Asks for an answer, by name, tokens of prompt and answer, and blocks that the ticket promises."""
    made = generation(CountingModel())

    def run(name: str, prompt: int, new: int, blocks: int) -> AbstractAsyncContextManager[TokenStream]:
        asked = request(name, [1] * prompt, new)
        return engine.run(made, asked, TicketId(name), blocks * BLOCK_BYTES)

    return run


def turn(engine: Engine) -> bool:
    """Makes a step, if there is anything to do."""
    assert isinstance(engine._loop, HandLoop)
    return engine._loop.turn()


async def finish(stream: TokenStream) -> list[FinishReason]:
    """Of an answer that is complete."""
    return [piece.finish async for piece in stream if piece.finish]


async def test_small_ones_pass_a_large_one_that_waits_until_it_lets_no_more_pass(
    engine: Engine, ask: Ask
) -> None:
    """What has grown leaves no room for the large one, but for small ones: a bounded number of them have it first.

    Fault injection: turns red when `MemoryQueue.may_begin` lets nobody pass, or `note_begun` does nothing.
    """
    async with engine, ask("grows", 96, 33, 6) as first:  # six blocks now, eight in all
        while engine.desk.use.lent_bytes < 8 * BLOCK_BYTES:
            turn(engine)
        async with ask("large", 130, 31, 10) as second:
            for _ in range(PATIENCE * 10 // 4):
                async with ask("small", 62, 2, 4) as small:
                    turn(engine)
                    turn(engine)
                    assert [FinishReason.LENGTH] == await finish(small)
            assert (1, 10 * BLOCK_BYTES) == (engine.desk.parked, engine.desk.waiting_bytes)
            with pytest.raises(Overloaded):
                async with ask("small", 62, 2, 4):
                    pass
            while turn(engine):
                pass
            assert [[FinishReason.LENGTH]] * 2 == [await finish(first), await finish(second)]


async def test_one_that_waits_is_lent_memory_before_a_larger_one_that_came_first(
    engine: Engine, ask: Ask
) -> None:
    """All memory is taken, and both wait; the block that becomes free then is enough for the later one.

    Fault injection: turns red when `MemoryQueue.serve` looks at the first alone, or those who wait raise `KvDesk._pressure`:
    what has memory could not begin then.
    """
    async with engine, contextlib.AsyncExitStack() as scope:

        async def begin(name: str, prompt: int, new: int, blocks: int) -> TokenStream:
            return await scope.enter_async_context(ask(name, prompt, new, blocks))

        streams = [await begin(name, 31, 50, 2) for name in "abc"]  # five blocks each in the end
        while engine.desk.use.lent_bytes < 15 * BLOCK_BYTES:
            turn(engine)
        streams += [await begin("ends", 10, 6, 1), await begin("large", 100, 6, 7)]
        small = await begin("small", 10, 6, 1)
        assert 2 == engine.desk.parked
        for _ in range(20):
            turn(engine)
        assert (1, 7 * BLOCK_BYTES) == (engine.desk.parked, engine.desk.waiting_bytes)
        assert [FinishReason.LENGTH] == await finish(small)
        while turn(engine):
            pass
        assert [[FinishReason.LENGTH]] * 5 == [await finish(stream) for stream in streams]


@dataclasses.dataclass(eq=False)
class StubLoan:
    """As much of a loan as the queue looks at."""

    age: int
    need_bytes: int
    is_background: bool = False
    refused_room: int | None = None

    @property
    def job(self) -> StubLoan:
        return self

    @property
    def rank(self) -> Rank:
        return self.is_background, self.age


class Lent:
    """Memory that is lent in turn, and who was tried."""

    def __init__(self, room: int, *loans: StubLoan) -> None:
        self.room = room
        self.tried: list[StubLoan] = []
        self.queue = MemoryQueue()
        for loan in loans:
            self.queue.push(cast("Loan", loan))

    def serve(self) -> list[StubLoan]:
        """Who has been tried by that."""
        self.tried = []
        self.queue.serve(lambda: self.room, self._lend)
        self.queue.check()
        return self.tried

    def _lend(self, loan: Loan) -> bool:
        self.tried.append(cast("StubLoan", loan))
        return loan.need_bytes <= self.room


def test_what_nobody_waits_for_passes_nobody_who_waits() -> None:
    """It has its turn once only such work waits, by age and size as others; when it begins, nobody is told.

    Fault injection: turns red when `_next_served` does not look at `is_background`, or `note_begun` does not.
    """
    large, warm, small = (
        StubLoan(0, 10),
        StubLoan(1, 7, is_background=True),
        StubLoan(3, 3, is_background=True),
    )
    lent = Lent(5, large, small, warm)
    assert [large] == lent.serve()
    for age in range(PATIENCE * 10):
        newcomer = cast("Loan", StubLoan(4 + age, 9, is_background=True))
        assert lent.queue.may_begin(newcomer)
        lent.queue.note_begun(newcomer)
    assert lent.queue.may_begin(cast("Loan", StubLoan(1000, 9)))
    lent.queue.remove(cast("Loan", large))
    assert [warm, small] == lent.serve()
    assert (1, 7) == (len(lent.queue), lent.queue.waiting_bytes)


def test_nobody_is_tried_again_before_anything_has_become_free() -> None:
    """Each by itself; whoever waits anew is tried.

    Fault injection: turns red when `_next_served` does not note `refused_room`, or `push` does not forget it.
    """
    first, second = StubLoan(0, 10), StubLoan(1, 9)
    lent = Lent(5, first, second)
    assert [[first, second], []] == [lent.serve(), lent.serve()]
    lent.room = 4
    assert [] == lent.serve()
    lent.room = 5
    assert [first, second] == lent.serve()
    lent.queue.remove(cast("Loan", first))
    lent.queue.push(cast("Loan", first))
    assert [first] == lent.serve()
