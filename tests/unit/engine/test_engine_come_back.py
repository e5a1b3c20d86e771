"""A request that has memory again and ends before it takes it up."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from services.common.errors import Cancelled
from services.common.ids import TicketId
from services.engine.loan import Loan
from services.engine.sequence import Phase, TokenRequest
from services.engine.token_stream import TokenStream
from tests.unit.engine.fakes import CountingModel, generation, request
from tests.unit.engine.random_moves import Setting
from tests.unit.engine.reading_model import ReadingModel
from tests.unit.engine.watched_engine import SMALLEST_BLOCK, WatchedEngine

PROMPT = [(3 * i) % 64 for i in range(40)]
MOST_STEPS = 200


def loan_of(engine: WatchedEngine, asked: TokenRequest) -> Loan:
    (loan,) = [loan for job, loan in engine.desk.loans.items() if job.sequence.request is asked]
    return loan


async def steps_until_lent_again(engine: WatchedEngine, asked: TokenRequest) -> None:
    """Until it was set back and has memory, of which its sequence does not know yet."""
    for _ in range(MOST_STEPS):
        loan = loan_of(engine, asked)
        if loan.preemptions and loan.has_memory and loan.job.sequence.phase is Phase.PREEMPTED:
            return
        await engine.one_step()
    pytest.fail("it was not set back, or came back at once")


# Fault injection: turns red when `Loan.keep` does not look at `is_taken_up`.
@pytest.mark.parametrize("swap_blocks", [0, 64])
async def test_no_page_is_kept_of_memory_that_was_not_taken_up(swap_blocks: int) -> None:
    """Its caller leaves in between, and its old pages went to others: it ends as any other, and whoever begins alike gets the right answer."""
    model = ReadingModel(3, {})
    model.block_bytes = SMALLEST_BLOCK
    made = generation(model)
    older, younger = request("older", [1] * 30, 160), request("younger", PROMPT, 60, cache_salt=b"")
    setting = Setting(
        has_thread=False,
        blocks=4,
        chunk_tokens=128,
        max_batch=8,
        swap_blocks=swap_blocks,
        is_copying_cheap=bool(swap_blocks),
    )
    engine = WatchedEngine.of(setting)
    async with engine, contextlib.AsyncExitStack() as others:
        scope = contextlib.AsyncExitStack()
        for asked, held in ((older, others), (younger, scope)):
            promised_bytes = (len(asked.prompt) // 16 + 1) * SMALLEST_BLOCK
            left = await held.enter_async_context(engine.run(made, asked, TicketId(asked.id), promised_bytes))
        await steps_until_lent_again(engine, younger)
        await scope.aclose()
        await engine.one_step()
        assert isinstance(left.outcome, Cancelled), left.outcome
        alike = request("alike", PROMPT, 20, cache_salt=b"")
        stream: TokenStream = await others.enter_async_context(engine.run(made, alike, TicketId("alike"), 1))
        while stream.outcome is None:
            await engine.one_step()
            engine.look()
        assert model.answer(PROMPT, 20) == [token async for piece in stream for token in piece.token_ids]


async def test_nothing_is_kept_of_one_that_waited_for_memory_in_vain() -> None:
    """It was looked for room for, found none, and its caller left: its model can go, though others go on.

    Fault injection: turns red when `KvDesk.leave` does not forget whom nothing was lent to last.
    """
    setting = Setting(
        has_thread=False, blocks=4, chunk_tokens=128, max_batch=8, swap_blocks=0, is_copying_cheap=False
    )
    engine, staying, leaving = WatchedEngine.of(setting), CountingModel(), CountingModel()
    staying.block_bytes = leaving.block_bytes = SMALLEST_BLOCK
    all_of_it = engine.arena.pool.total_bytes
    gone = weakref.ref(leaving)
    async with engine, contextlib.AsyncExitStack() as scope:
        large = request("large", [1] * 160, all_of_it // SMALLEST_BLOCK * 16 - 159)
        await scope.enter_async_context(
            engine.run(generation(staying), large, TicketId("large"), 11 * SMALLEST_BLOCK)
        )
        while engine.desk.use.lent_bytes < all_of_it:
            await engine.one_step()
        waits = request("waits", [2] * 16, 4)
        async with engine.run(generation(leaving), waits, TicketId("waits"), SMALLEST_BLOCK):
            await engine.one_step()
            assert 1 == engine.desk.parked
        del leaving, waits
        await engine.one_step()
        assert 0 == engine.desk.parked
        gc.collect()
        assert gone() is None
