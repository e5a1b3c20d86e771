"""What requests want of memory, as the arena is scaled and loads are judged by."""

from __future__ import annotations

import contextlib

from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.demand import Demand
from services.engine.engine import Engine
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request
from tests.unit.engine.random_moves import Setting
from tests.unit.engine.watched_engine import SMALLEST_BLOCK, WatchedEngine


async def test_promises_and_the_largest_request_count() -> None:
    """Tickets count as schedulers count them; a request without one by its worst case, for as long as it runs.

    Fault injection: turns red when Demand.of leaves out the loans, or the tickets.
    """
    gate = Gate()
    async with Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=64, max_batch=2) as engine:
        model = generation(CountingModel(gate))
        assert Demand() == Demand.of(engine)
        small, large = request("small", [1] * 16, 17), request("large", [1] * 16, 100)
        async with engine.run(model, small, TicketId("t")), engine.run(model, large):
            assert Demand(2 * BLOCK_BYTES, 0, 8 * BLOCK_BYTES) == Demand.of(engine)
            gate.open(500)


async def test_what_lies_outside_of_the_arena_is_taken_and_all_else_of_its_space_is_not() -> None:
    """What is about to be copied out is not there yet, and what is about to come back is there no longer.

    Fault injection: turns red when Demand.of counts the whole space or what is free of it, or Loan.outside_bytes does not
    look at `has_memory`.
    """
    model = CountingModel()
    model.block_bytes = SMALLEST_BLOCK
    made = generation(model)
    engine = WatchedEngine.of(
        Setting(
            has_thread=False, blocks=4, chunk_tokens=128, max_batch=8, swap_blocks=64, is_copying_cheap=True
        )
    )
    older, younger = request("older", [1] * 30, 160), request("younger", [3] * 40, 60)
    seen = set()
    async with engine, contextlib.AsyncExitStack() as scope:
        for asked in (older, younger):
            promised_bytes = (len(asked.prompt) // 16 + 1) * SMALLEST_BLOCK
            await scope.enter_async_context(engine.run(made, asked, TicketId(asked.id), promised_bytes))
        (loan,) = [loan for job, loan in engine.desk.loans.items() if job.sequence.request is younger]
        while engine.is_busy:
            saved = loan.job.saved if not loan.has_memory else None
            held_bytes = saved.blocks.nbytes if saved else 0
            assert engine.desk.swap.total_bytes - held_bytes == Demand.of(engine).swap_bytes
            if loan.swap_bytes:
                seen.add((loan.is_leaving, loan.has_memory))
            await engine.one_step()
            engine.look()
    assert {(True, True), (False, False), (False, True)} == seen
