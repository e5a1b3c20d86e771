"""Requests that are set back for others: nobody's answer changes, and everybody's comes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from structlog.testing import capture_logs

from services.common.errors import Cancelled, DeadlinePassed, HalogenError, Overloaded, PreconditionFailed
from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.block_pool import BlockPool
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.job import ComeBack, Job, SetBack
from services.engine.lender import LoadedModel
from services.engine.preemption import Way
from services.engine.reservation import Reservation
from services.engine.sequence import Phase, Sequence, TokenRequest
from services.engine.stepper import FinishReason, Stepper, Update
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request
from tests.unit.engine.reading_model import ReadingModel

SWAP_BYTES = 1 << 20


def engine(blocks: int, **changes: Any) -> Engine:
    settings_: dict[str, Any] = {"chunk_tokens": 128, "max_batch": 64, "check_every_step": True, **changes}
    return Engine(Arena(blocks * BLOCK_BYTES), **settings_)


def promise(asked: TokenRequest) -> int:
    """A ticket's bytes for the prompt and one token: the tightest there is."""
    return (len(asked.prompt) // 16 + 1) * BLOCK_BYTES


async def ask(running: Engine, made: Generation, asked: TokenRequest) -> list[int]:
    async with running.run(made, asked, TicketId(asked.id), promise(asked)) as stream:
        return [token async for piece in stream for token in piece.token_ids]


def phase_of(running: Engine, asked: TokenRequest) -> Phase:
    (phase,) = [job.sequence.phase for job in running.desk.loans if job.sequence.request is asked]
    return phase


def mix(long: int = 2, short: int = 6) -> list[TokenRequest]:
    """Long ones that need 14 blocks each, and short ones that need 4."""
    lengths = [(64, 160)] * long + [(20, 44)] * short
    return [
        request(f"r{i}", [(7 * i + k) % 64 for k in range(prompt)], new, cache_salt=b"")
        for i, (prompt, new) in enumerate(lengths)
    ]


# Fault injection: turns red when `Loan.need_blocks` is what it needs to begin, also after it was set back, and
# `Standing.may_be_set_back_for` does not look at how often it was.
@pytest.mark.parametrize("swap_bytes", [0, SWAP_BYTES])
async def test_s_b2_two_long_and_six_short_requests_all_come_to_their_ends_in_a_tight_pool(
    swap_bytes: int,
) -> None:
    """S-B2: every step gives a token or brings a prompt on, nobody is set back more than twice, all answers are right."""
    model = ReadingModel(3, {})
    made, told = generation(model), mix()
    with capture_logs() as events:
        async with engine(26, swap_bytes=swap_bytes) as running, asyncio.timeout(60):
            answers = await asyncio.gather(*(ask(running, made, each) for each in told))
            assert 0 == running.arena.pool.used_bytes == running.desk.swap.used_bytes
            running.check()
    assert [model.answer(each.prompt, each.sampling.max_tokens) for each in told] == answers
    times = collections.Counter(each["request_id"] for each in events if each["event"] == "request_preempted")
    assert running.desk.preemptions.total() == times.total() > 0
    assert max(times.values()) <= 2
    assert (Way.SWAP in running.desk.preemptions) is bool(swap_bytes)
    without = [len(list(run)) for gave, run in itertools.groupby(map(gives_token, model.steps)) if not gave]
    assert max(without, default=0) <= 2, "between two tokens lies one whole recomputation at most"


def gives_token(step: Any) -> bool:
    return len(step.sample_rows) > 0


@pytest.mark.parametrize("swap_bytes", [0, SWAP_BYTES])
async def test_the_oldest_goes_on_whoever_else_does(swap_bytes: int) -> None:
    """The first long request is never set back: it takes as many steps as it has tokens, and few more."""
    model = ReadingModel(3, {})
    told = mix(long=3, short=0)
    async with engine(20, swap_bytes=swap_bytes) as running, asyncio.timeout(60):
        loans: dict[str, int] = {}

        async def watched(asked: TokenRequest) -> None:
            async with running.run(generation(model), asked, TicketId(asked.id), promise(asked)) as stream:
                (loan,) = [it for it in running.desk.loans.values() if it.job.sequence.request is asked]
                async for _ in stream:
                    pass
            loans[asked.id] = loan.preemptions

        await asyncio.gather(*map(watched, told))
    assert 0 == loans["r0"]
    assert max(loans.values()) in {1, 2}


async def test_work_that_nobody_waits_for_goes_first() -> None:
    """A warm-up that is younger than nobody gives its memory to whoever has a ticket.

    Fault injection: turns red when `Standing.may_be_set_back_for` does not look at `is_background`.
    """
    gate = Gate()
    model = CountingModel(gate)
    async with engine(8) as running, asyncio.timeout(30):
        warm = request("warm-up", range(16), 49)  # all of its four blocks
        asked = request("asked", range(32), 65)  # three now, six in all
        async with running.run(generation(model), warm) as warming:
            async with running.run(generation(model), asked, TicketId("t"), promise(asked)) as stream:
                gate.open()  # the warm-up alone
                while not running.desk.preemptions:
                    gate.open()
                    await anext(stream)
                assert (1, Phase.PREEMPTED) == (running.desk.parked, phase_of(running, warm))
                gate.open(1000)
                assert [FinishReason.LENGTH] == [p.finish async for p in stream if p.finish]
                assert {Way.RECOMPUTE: 1} == running.desk.preemptions
            assert [FinishReason.LENGTH] == [p.finish async for p in warming if p.finish]


async def test_a_ticket_that_meets_a_full_arena_waits_and_others_are_refused() -> None:
    """What was promised comes; who was promised nothing, or more than there is, is told to come back.

    Fault injection: turns red when `KvDesk._may_wait` says no.
    """
    gate = Gate()
    model = CountingModel(gate)
    async with engine(8) as running, asyncio.timeout(30):
        made = generation(model)
        large = request("large", [1] * 96, 33)  # all eight blocks
        async with running.run(made, large, TicketId("t1"), 6 * BLOCK_BYTES) as first:
            gate.open(5)
            while running.desk.use.lent_bytes < 8 * BLOCK_BYTES:
                await anext(first)
            waits = request("waits", [2] * 16, 4)
            async with running.run(made, waits, TicketId("t2"), 0) as second:
                assert 1 == running.load.waiting_for_memory == running.desk.parked
                assert BLOCK_BYTES == running.desk.waiting_bytes
                for ticket in (None, TicketId("t3")):
                    with pytest.raises(Overloaded):
                        async with running.run(made, request("late", [3] * 16, 4), ticket, 7 * BLOCK_BYTES):
                            pass
                gate.open(1000)
                assert [FinishReason.LENGTH] == [p.finish async for p in first if p.finish]
                assert [3, 4, 5, 6] == [t async for p in second for t in p.token_ids]
        assert 0 == running.arena.pool.used_bytes


async def parked(running: Engine, gate: Gate, stream: Any) -> None:
    """Lets steps pass until a request is set back."""
    while not running.desk.parked:
        gate.open()
        await anext(stream)


def overdue(_: Engine, __: LoadedModel, asked: TokenRequest) -> None:
    object.__setattr__(asked, "deadline", time.monotonic())


def abort(running: Engine, _: LoadedModel, asked: TokenRequest) -> None:
    (job,) = [job for job in running.desk.loans if job.sequence.request is asked]
    running._loop.end(job, Cancelled("aborted"))


def drain(running: Engine, model: LoadedModel, _: TokenRequest) -> None:
    running.end_all(model, PreconditionFailed("its weights go", reason="REVISION_RETIRED"))


@pytest.mark.parametrize("swap_bytes", [0, SWAP_BYTES])
@pytest.mark.parametrize(
    ("end", "failure"), [(overdue, DeadlinePassed), (abort, Cancelled), (drain, PreconditionFailed)]
)
async def test_what_is_set_back_ends_as_anything_else(
    end: Callable[[Engine, LoadedModel, TokenRequest], None], failure: type[HalogenError], swap_bytes: int
) -> None:
    """By its deadline, its caller, or for the sake of a swap of weights: within a step, and all it had is free."""
    gate = Gate()
    old, new = CountingModel(gate), CountingModel()
    async with engine(8, swap_bytes=swap_bytes) as running, asyncio.timeout(30):
        made, retiring = generation(old), generation(new)
        first, second = request("first", [1] * 32, 81), request("second", [5] * 32, 49)
        async with running.run(made, first, TicketId("t1"), promise(first)) as stream:
            async with running.run(retiring, second, TicketId("t2"), promise(second)) as other:
                await parked(running, gate, stream)
                assert (1, 1) == (retiring.users, running.load.waiting_for_memory)
                end(running, new, second)
                gate.open(3)
                with pytest.raises(failure):
                    async for _ in other:
                        pass
            gate.open(1000)
            assert [FinishReason.LENGTH] == [p.finish async for p in stream if p.finish]
        assert (0, 0, 0) == (retiring.users, running.arena.pool.used_bytes, running.desk.swap.used_bytes)
        running.check()


async def test_weights_are_kept_for_whoever_is_set_back() -> None:
    """Its generation has a user until it has ended; it comes back to the model that it began with."""
    gate = Gate()
    old, new = ReadingModel(3, {}), CountingModel(gate)
    async with engine(8) as running, asyncio.timeout(30):
        draining, made = generation(old), generation(new)
        first, second = request("first", [1] * 32, 81), request("second", [5] * 32, 49)
        async with (
            running.run(made, first, TicketId("t1"), promise(first)) as stream,
            running.run(draining, second, TicketId("t2"), promise(second)) as other,
        ):
            await parked(running, gate, stream)
            assert 1 == draining.users
            gate.open(1000)
            assert [FinishReason.LENGTH] == [p.finish async for p in stream if p.finish]
            assert old.answer([5] * 32, 49) == [t async for p in other for t in p.token_ids]


async def test_growth_is_told_to_schedulers() -> None:
    """A ticket's line grows with what its request has, and goes with it."""
    gate = Gate()
    async with engine(16) as running, asyncio.timeout(30):
        asked, told = request("asked", [1] * 20, 60), set[int]()
        made = generation(CountingModel(gate))
        async with running.run(made, asked, TicketId("t"), promise(asked)) as stream:
            told = {running.occupancy.tickets[0].reserved_bytes}
            for _ in range(59):
                gate.open()
                await anext(stream)
                told.add(running.occupancy.tickets[0].reserved_bytes)
            gate.open()
            await anext(stream)
        assert {blocks * BLOCK_BYTES for blocks in (2, 3, 4, 5)} == told
        assert () == running.occupancy.tickets


async def test_answers_that_end_early_let_more_in() -> None:
    """After sixteen answers of two tokens the next is promised its prompt and two, not the worst case."""
    model = CountingModel()
    async with engine(64) as running, asyncio.timeout(30):
        made = generation(model)
        for i in range(17):
            asked = request(f"r{i}", [1], 500, stop_token_ids=frozenset({3}))
            async with running.run(made, asked, TicketId(f"t{i}")) as stream:
                reserved = running.occupancy.tickets[0].reserved_bytes
                async for _ in stream:
                    pass
            assert (1 if i == 16 else 32) * BLOCK_BYTES == reserved


Moves = list[tuple[int, int, Way]]


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.sampled_from(Way)), max_size=30),
    st.integers(1, 50),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_s_b3_an_answer_is_the_same_wherever_its_request_is_set_back(
    lengths: list[tuple[int, int]], moves: Moves, chunk_tokens: int, shares: bool
) -> None:
    """S-B3: in the middle of a prompt, between two tokens, before the first step; by either way; with kept pages.

    Fault injection: turns red when `Sequence.come_back` begins after what was known, `Job.come_back` skips what was
    saved, or `Sequence.restore` takes one block less.
    """
    pool, model = BlockPool(BLOCK_BYTES * 512), ReadingModel(3, {})
    stepper = Stepper(chunk_tokens=chunk_tokens, max_batch=4)
    jobs = [reserved(pool, model, i, *length) for i, length in enumerate(lengths)]
    for job, _ in jobs:
        stepper.add(job)
    holds: dict[Job, list[Reservation]] = {job: [reservation] for job, reservation in jobs}
    due = collections.defaultdict[int, dict[Job, Way]](dict)
    for which, at, way in moves:
        due[at][jobs[which % len(jobs)][0]] = way
    told: list[Update] = []
    for step in itertools.count():
        for job, way in due[step].items():
            move(stepper, pool, job, way, holds[job], keeps=shares)
        told += stepper.step(0.0)
        for job, _ in jobs:
            if job.sequence.phase is Phase.PREEMPTED:
                due[step + 1].setdefault(job, Way.RECOMPUTE)
        if stepper.is_idle:
            break
    for job, _ in jobs:
        asked = job.sequence.request
        said = [update.token for update in told if update.job is job and update.token is not None]
        assert model.answer(asked.prompt, asked.sampling.max_tokens) == said
        assert 1 == sum(update.is_first_chunk for update in told if update.job is job)


def reserved(
    pool: BlockPool, model: ReadingModel, number: int, prompt: int, new: int
) -> tuple[Job, Reservation]:
    asked = request(str(number), [(number + k) % 64 for k in range(prompt)], new)
    reservation = pool.reserve(BLOCK_BYTES, asked.worst_case_blocks)
    return Job(Sequence(asked, reservation), model), reservation


def move(
    stepper: Stepper, pool: BlockPool, job: Job, way: Way, holds: list[Reservation], *, keeps: bool
) -> None:
    """Sets back what has memory; brings back what has none, with some of its old pages as they were, or none."""
    sequence = job.sequence
    if sequence.phase is Phase.ENDED:
        return
    if sequence.phase is not Phase.PREEMPTED:
        stepper.order(SetBack(job, way, 1000))
        return
    kept = tuple(int(block) for block in sequence.table[: sequence.computed // 16]) if keeps else ()
    kept = kept[: (sequence.length - 1) // 16]
    reservation = pool.reserve(BLOCK_BYTES, sequence.request.worst_case_blocks - len(kept))
    holds.append(reservation)  # the old ones stay, so that nobody writes to the pages
    stepper.order(ComeBack(job, reservation, kept))


async def test_the_youngest_goes_when_those_who_are_older_have_no_place() -> None:
    """It began first, as lines take turns, and is short; three older ones have memory and wait for its place.

    Fault injection: turns red when `KvDesk.settle` does not look at `is_stuck`.
    """
    gate = Gate()
    first, small, large = CountingModel(gate), CountingModel(), CountingModel()
    small.block_bytes, large.block_bytes = 2 * BLOCK_BYTES, 4 * BLOCK_BYTES
    told = [request("first", [1], 2), *(request(f"s{i}", [1], 1) for i in range(3)), request("l", [1], 17)]
    models = [first, small, small, small, large]
    async with engine(13, max_batch=1) as running, asyncio.timeout(30), contextlib.AsyncExitStack() as scope:
        streams = []
        for model, each in zip(models, told, strict=True):
            run = running.run(generation(model), each, TicketId(each.id), model.block_bytes)
            streams.append(await scope.enter_async_context(run))
            if model is first:
                await asyncio.to_thread(
                    gate.reached.acquire
                )  # its step is the first one: all others come during it
        gate.open(2)
        ends = [[p.finish async for p in stream][-1] for stream in streams]
        assert [FinishReason.LENGTH] * 5 == ends
        assert {Way.RECOMPUTE: 1} == running.desk.preemptions
