"""An engine whose arena is too small for what is asked of it, with several models: moves are made, and all is looked after."""

from __future__ import annotations

import asyncio
import collections
import itertools
import math
import time
from collections.abc import Sequence as Ordered
from typing import Final, Self
from unittest import mock

from structlog.testing import capture_logs

from services.common.errors import HalogenError, PreconditionFailed
from services.common.ids import RequestId, TicketId
from services.common.kv import BLOCK_TOKENS
from services.common.registry.records import GenerationState as State
from services.engine import engine as engine_module
from services.engine.arena import Arena
from services.engine.costs import Costs
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.preemption import Way
from services.engine.sequence import Sampling, TokenRequest
from services.engine.stepper import Update
from services.engine.timeline import StepTimes
from tests.unit.engine.fakes import VOCABULARY, generation
from tests.unit.engine.hand_loop import HandLoop
from tests.unit.engine.oracle import Case, Oracle
from tests.unit.engine.paged_model import PagedModel
from tests.unit.engine.random_moves import (
    SLOTS,
    Ask,
    Fail,
    Leave,
    Move,
    Pass,
    Replace,
    Restart,
    Setting,
)

_SMALLEST_BLOCK: Final = BLOCK_TOKENS * 8
_LARGEST_BLOCK: Final = SLOTS * BLOCK_TOKENS * 8
_DEAR, _CHEAP = 1e-6, 1e18  # bytes a second
_TURNS_TO_REST: Final = 20_000
_REST_S: Final = 60.0
_UNHEARD_OF: Final = {
    "books_wrong",
    "close_failed",
    "delivery_failed",
    "lending_failed",
    "order_failed",
    "stepper_failed",
}


class Seen:
    """What has happened in all, over many engines.

    Attributes:
        oracle: Judges requests.
        preempted: Requests that were set back, by way.
        steps: Steps that were computed.
        full_steps: After how many of them no block was left for any model, or somebody waited for memory.
        found_tokens: Of prompts, that were not computed.
        starts: Engines.
        replaced: Generations.
    """

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.preempted: collections.Counter[Way] = collections.Counter()
        self.steps = self.full_steps = self.found_tokens = self.starts = self.replaced = 0


class _WatchedEngine(Engine):
    """Looks at its books after every step, aloud."""

    broken: Exception | None = None
    full_steps = 0

    def _deliver(self, updates: list[Update], step: StepTimes) -> None:
        super()._deliver(updates, step)
        pool = self.arena.pool
        self.full_steps += pool.room(_SMALLEST_BLOCK) == 0 or self.desk.parked > 0
        try:
            self.check()
        except Exception as broken:  # noqa: BLE001  # the event loop would swallow it
            self.broken = self.broken or broken
        self.delivered.set()

    async def __aenter__(self) -> Self:
        self.delivered = asyncio.Event()
        await super().__aenter__()
        return self


class PressedEngine:
    """One after the other, rather, and what is asked of them.

    Args:
        setting: What they are like.
        seen: Is told what has happened.
    """

    def __init__(self, setting: Setting, seen: Seen) -> None:
        self._setting = setting
        self._seen = seen
        self._numbers = itertools.count()
        self._weights = itertools.count(1, 2)

    async def play(self, moves: Ordered[Move]) -> None:
        """Makes all moves; then everything comes to rest, and every request has ended as it may."""
        await self._start()
        for move in moves:
            await self._make(move)
            await self._breathe()
            self._look()
        await self._rest()
        await self._stop()

    async def _make(self, move: Move) -> None:
        match move:
            case Ask():
                self._ask(move)
            case Leave(which):
                self._leave(which)
            case Pass(steps):
                await self._pass(steps)
            case Fail(slot, is_whole):
                self._fail(self._models[slot], is_whole=is_whole)
            case Replace(slot, is_patient):
                self._replace(slot, is_patient=is_patient)
            case Restart():
                await self._stop()
                await self._start()
        await self._retire()

    async def _start(self) -> None:
        setting = self._setting
        arena = Arena(setting.blocks * _LARGEST_BLOCK)
        loop = engine_module.StepLoop if setting.has_thread else HandLoop
        with mock.patch.object(engine_module, "StepLoop", loop):
            self._engine = _WatchedEngine(
                arena,
                chunk_tokens=setting.chunk_tokens,
                max_batch=setting.max_batch,
                check_every_step=True,
                swap_bytes=setting.swap_blocks * _LARGEST_BLOCK,
            )
        self._engine._costs = Costs(_CHEAP if setting.is_copying_cheap else _DEAR)
        self._cases: list[Case] = []
        self._tasks: dict[asyncio.Task[None], Case] = {}
        self._draining: list[Generation] = []
        self._models: list[PagedModel] = []
        self._serving: list[Generation] = []
        for slot in range(SLOTS):
            self._models.append(self._new_model(slot))
            self._serving.append(generation(self._models[slot]))
        await self._engine.__aenter__()
        self._seen.starts += 1

    async def _stop(self) -> None:
        """Whatever is under way ends, and nothing is left."""
        for case in self._cases:
            case.was_stopped = True
        await self._engine.__aexit__(None, None, None)
        async with asyncio.timeout(_REST_S):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._engine.is_busy:  # noqa: ASYNC110  # the last delivery is on its way
            await asyncio.sleep(0)
        self._look()
        self._check_rest()
        for task, case in self._tasks.items():
            assert task.cancelled() or task.exception() is None, case
        for case in self._cases:
            self._seen.oracle.judge(case)
        self._count()

    def _check_rest(self) -> None:
        engine = self._engine
        engine.check()
        assert 0 == engine.arena.pool.used_bytes == engine.desk.swap.used_bytes
        assert (set(), ()) == (engine._running, engine.occupancy.tickets)
        assert {0} == {each.users for each in (*self._serving, *self._draining)}
        stepper = engine._loop._stepper
        assert ({}, {}) == (stepper._jobs, stepper._lines)
        assert engine.accepted == sum(engine.ended.values()), "every request ends once"
        assert engine.accepted == sum(case.stream is not None for case in self._cases)

    def _count(self) -> None:
        seen, engine = self._seen, self._engine
        seen.preempted += engine.desk.preemptions
        seen.steps += engine.steps
        seen.full_steps += engine.full_steps
        seen.found_tokens += engine.prefixes.found_tokens

    def _ask(self, move: Ask) -> None:
        case = self._case(move)
        promised = None
        if move.promise is not None:
            blocks = -(-(len(case.request.prompt) + min(move.promise, move.new) - 1) // BLOCK_TOKENS)
            promised = blocks * case.model.block_bytes
        ticket = None if move.is_background else TicketId(case.request.id)
        self._cases.append(case)
        task = asyncio.create_task(self._read(case, self._serving[move.slot], ticket, promised))
        self._tasks[task] = case

    def _case(self, move: Ask) -> Case:
        number, model = next(self._numbers), self._models[move.slot]
        own = [(number * 7 + at * at) % VOCABULARY for at in range(move.prompt)]
        common = [(at * 5 + 3) % VOCABULARY for at in range(move.prompt)]
        sampling = Sampling(
            max_tokens=move.new,
            temperature=0.8 if move.samples else 0.0,
            seed=number,
            stop_token_ids=frozenset(range(0, VOCABULARY, 9)) if move.stops else frozenset(),
            logprobs=move.samples,
        )
        asked = TokenRequest(
            id=RequestId(f"r{number}"),
            prompt=tuple([*common[:50], *own][: move.prompt] if move.is_alike else own),
            sampling=sampling,
            deadline=self._deadline(move.patience),
            cache_salt=b"" if move.is_alike else None,
        )
        worst_bytes = asked.worst_case_blocks * model.block_bytes
        return Case(
            asked,
            model,
            faults=model.faults - model.failures - model.spoiled,
            may_fit=worst_bytes <= self._engine.arena.pool.promisable_bytes,
        )

    async def _read(
        self, case: Case, serving: Generation, ticket: TicketId | None, promised: int | None
    ) -> None:
        case.was_alone = not self._engine.is_busy
        try:
            async with self._engine.run(serving, case.request, ticket, promised) as stream:
                case.stream = stream
                async for piece in stream:
                    case.hear(piece)
        except HalogenError as failure:
            case.failure = failure

    def _leave(self, which: int) -> None:
        reading = [task for task in self._tasks if not task.done()]
        if reading:
            task = reading[which % len(reading)]
            self._tasks[task].has_left = True
            task.cancel()

    def _fail(self, model: PagedModel, *, is_whole: bool) -> None:
        model.faults += 1
        if is_whole:
            model.failures += 1
        else:
            model.spoiled += 1

    def _replace(self, slot: int, *, is_patient: bool) -> None:
        old, model = self._serving[slot], self._models[slot]
        old.advance(State.DRAINING)
        self._draining.append(old)
        self._models[slot] = self._new_model(slot)
        self._serving[slot] = generation(self._models[slot])
        self._seen.replaced += 1
        if not is_patient:
            for case in self._cases:
                case.was_drained |= case.model is model
            self._engine.end_all(model, PreconditionFailed("its weights go", reason="REVISION_RETIRED"))

    async def _retire(self) -> None:
        """Who drains and has nobody left lets go of its pages, as the manager has it."""
        for old in [each for each in self._draining if not each.users]:
            self._draining.remove(old)
            old.advance(State.RETIRED)
            assert old.model is not None
            await self._engine.forget(old.model)
            old.let_go()

    async def _pass(self, steps: int) -> None:
        for _ in range(steps):
            if not self._engine.is_busy:
                return
            await self._one_step()

    async def _one_step(self) -> None:
        """Until something was told, by the hand of the test or the engine's own thread."""
        engine = self._engine
        if isinstance(engine._loop, HandLoop):
            assert engine._loop.turn(), "there is work, and nobody can go on"
            await self._breathe()
        else:
            engine.delivered.clear()
            async with asyncio.timeout(_REST_S):
                while engine.is_busy and not engine.delivered.is_set():
                    await engine.delivered.wait()
        self._look()

    async def _rest(self) -> None:
        """Everybody comes to an end without more to happen."""
        for _ in range(_TURNS_TO_REST):
            if not self._engine.is_busy:
                break
            await self._one_step()
        assert not self._engine.is_busy, "work that takes no end"
        await self._retire()
        assert [] == self._draining

    async def _breathe(self) -> None:
        """Readers get what has come."""
        for _ in range(4):
            await asyncio.sleep(0)

    def _look(self) -> None:
        if self._engine.broken is not None:
            raise self._engine.broken

    def _new_model(self, slot: int) -> PagedModel:
        return PagedModel(next(self._weights), slot + 1, self._engine.arena)

    def _deadline(self, patience: int | None) -> float:
        if patience is None:
            return math.inf
        loop = self._engine._loop
        if isinstance(loop, HandLoop):
            return loop.now + patience
        return time.monotonic() + patience / 1000


def play(setting: Setting, moves: Ordered[Move], seen: Seen) -> None:
    """Makes all moves on an event loop of their own; raises at the first thing that may not be."""
    with capture_logs() as log:
        asyncio.run(PressedEngine(setting, seen).play(moves))
    unheard_of = [entry for entry in log if entry["event"] in _UNHEARD_OF]
    assert [] == unheard_of
