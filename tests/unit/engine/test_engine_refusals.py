"""What a refusal costs: nobody waits for a step, and the thread that computes hears nothing of it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from services.common.errors import HalogenError
from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.job import Job, Order
from services.engine.sequence import TokenRequest
from services.engine.step_loop import StepLoop
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request

BLOCKS = 8
REFUSALS = 100


class Doors:
    """Counts what comes through the doors of the step thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0
        submit, order, nudge = StepLoop.submit, StepLoop.order, StepLoop.nudge

        def counted_submit(loop: StepLoop, job: Job) -> None:
            self.passed += 1
            submit(loop, job)

        def counted_order(loop: StepLoop, order_: Order) -> None:
            self.passed += 1
            order(loop, order_)

        def counted_nudge(loop: StepLoop) -> None:
            self.passed += 1
            nudge(loop)

        monkeypatch.setattr(StepLoop, "submit", counted_submit)
        monkeypatch.setattr(StepLoop, "order", counted_order)
        monkeypatch.setattr(StepLoop, "nudge", counted_nudge)


def refused_at_once(entered: AbstractAsyncContextManager[object]) -> str:
    """Why a scope is not entered; fails where that is not said before anything is waited for."""
    entering = entered.__aenter__()
    try:
        entering.__await__().__next__()
    except HalogenError as refusal:
        return refusal.reason
    except StopIteration:
        pytest.fail("it was let in")
    pytest.fail("it waits")


# Fault injection: turns red when `Engine.run` waits for anything, or submits a job, before `Lending.admit`, or
# `KvDesk.admit` keeps a loan of what it refuses.
@pytest.mark.parametrize(
    ("asked", "ticket", "reason"),
    [
        (request("large", [1] * BLOCKS * 16, 2), TicketId("t2"), "PROMPT_TOO_LARGE"),
        (request("large", [1] * BLOCKS * 16, 2), None, "PROMPT_TOO_LARGE"),
        (request("none left", [1] * 48, 2), TicketId("t2"), "OVERLOADED"),
        (request("none left", [1] * 48, 2), None, "OVERLOADED"),
        (request("third"), TicketId("t3"), "TOO_MANY_REQUESTS"),
        (request("runs"), None, "ALREADY_EXISTS"),
    ],
)
async def test_s_b5_a_refusal_waits_for_no_step_and_makes_none(
    monkeypatch: pytest.MonkeyPatch, asked: TokenRequest, ticket: TicketId | None, reason: str
) -> None:
    """S-B5: a hundred are told so while one step takes no end; nothing is handed to its thread, and nothing of them is kept.

    A worst case over the arena, no memory that is not promised, as many requests as may run, an id in use.
    """
    gate = Gate()
    model = CountingModel(gate)
    most = 1 if ticket == "t3" else 0
    running = Engine(
        Arena(BLOCKS * BLOCK_BYTES), chunk_tokens=512, max_batch=64, max_concurrent_requests=most
    )
    async with running:
        made = generation(model)
        async with running.run(made, request("runs", [1] * 80, 17), TicketId("t1")):
            await asyncio.to_thread(gate.reached.acquire)  # the step is under way
            doors, before = Doors(monkeypatch), books(running)
            reasons = {refused_at_once(running.run(made, asked, ticket)) for _ in range(REFUSALS)}
            assert {reason} == reasons
            assert (0, before) == (doors.passed, books(running))
            assert (1, 0) == (made.users, len(model.steps))
            gate.open(1000)


def books(engine: Engine) -> tuple[object, ...]:
    """All that there is of requests."""
    return (
        engine.steps,
        engine.accepted,
        set(engine._running),
        len(engine.desk.loans),
        engine.arena.pool.used_bytes,
        engine.occupancy.tickets,
    )
