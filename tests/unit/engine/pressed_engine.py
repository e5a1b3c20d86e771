"""An engine whose arena is too small for what is asked of it, with several models: moves are made, and all is looked after."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator
from collections.abc import Sequence as Ordered
from typing import Final

from structlog.testing import capture_logs

from services.common.errors import HalogenError, PreconditionFailed
from services.common.ids import RequestId, TicketId
from services.common.kv import BLOCK_TOKENS, expected_blocks
from services.common.registry.records import GenerationState as State
from services.engine.generation import Generation
from services.engine.sequence import Sampling, TokenRequest
from tests.unit.engine.fakes import VOCABULARY, generation
from tests.unit.engine.oracle import Case
from tests.unit.engine.paged_model import PagedModel
from tests.unit.engine.random_moves import SLOTS, Ask, Fail, Leave, Move, Pass, Replace, Restart, Setting
from tests.unit.engine.seen import Seen
from tests.unit.engine.watched_engine import STUCK_S, WatchedEngine

_STEPS_TO_REST: Final = 20_000
_COMMON: Final = 50  # tokens that prompts have in common which are alike
_UNHEARD_OF: Final = {
    "books_wrong",
    "close_failed",
    "delivery_failed",
    "lending_failed",
    "order_failed",
    "stepper_failed",
}


class PressedEngine:
    """One from its start to its end, and what is asked of it.

    Args:
        engine: It.
        seen: Is told what has happened.
        numbers: For requests, and for the weights of models.
    """

    def __init__(self, engine: WatchedEngine, seen: Seen, numbers: Ordered[itertools.count[int]]) -> None:
        self._engine = engine
        self._seen = seen
        self._requests, self._weights = numbers
        self._cases: list[Case] = []
        self._tasks: dict[asyncio.Task[None], Case] = {}
        self._draining: list[Generation] = []
        self._models = [self._new_model(slot) for slot in range(SLOTS)]
        self._serving = [generation(model) for model in self._models]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Whatever is under way at the end of the scope ends with it, and nothing is left."""
        try:
            async with self._engine:
                yield
                for case in self._cases:
                    case.was_stopped = True
            async with asyncio.timeout(STUCK_S):
                await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._engine.look()
        self._check_rest()
        self._seen.note(self._engine)

    async def make(self, move: Move) -> None:
        """Makes a move, and lets readers have what comes of it."""
        match move:
            case Ask():
                self._ask(move)
            case Leave(which):
                self._leave(which)
            case Pass(steps):
                await self._pass(steps)
            case Fail(slot, is_whole):
                self._models[slot].fail(is_whole=is_whole)
            case Replace(slot, is_patient):
                self._replace(slot, is_patient=is_patient)
            case Restart():
                raise ValueError("that is another engine")
        await self._settle()

    async def rest(self) -> None:
        """Everybody comes to an end without more to happen."""
        await self._pass(_STEPS_TO_REST)
        assert not self._engine.is_busy, "work that takes no end"
        await self._settle()
        assert [] == self._draining

    def _check_rest(self) -> None:
        engine = self._engine
        engine.check()
        assert 0 == engine.arena.pool.used_bytes == engine.desk.swap.used_bytes
        assert (set(), ()) == (engine._running, engine.occupancy.tickets)
        assert {0} == {each.users for each in (*self._serving, *self._draining)}
        assert ({}, {}) == (engine._loop._stepper._jobs, engine._loop._stepper._lines)
        assert engine.accepted == engine.ended.total() == sum(case.stream is not None for case in self._cases)
        for case in self._cases:
            self._seen.oracle.judge(case)

    def _ask(self, move: Ask) -> None:
        case = self._case(move)
        ticket = None if move.is_background else TicketId(case.request.id)
        promised = None
        if move.promise is not None:
            blocks = expected_blocks(move.prompt, move.new, BLOCK_TOKENS, move.promise)
            promised = blocks * case.model.block_bytes
        self._cases.append(case)
        reading = self._read(case, self._serving[move.slot], ticket, promised)
        self._tasks[asyncio.create_task(reading)] = case

    def _case(self, move: Ask) -> Case:
        asked, model = self._request(move, next(self._requests)), self._models[move.slot]
        worst_bytes = asked.worst_case_blocks * model.block_bytes
        return Case(asked, model, may_fit=worst_bytes <= self._engine.arena.pool.promisable_bytes)

    def _request(self, move: Ask, number: int) -> TokenRequest:
        own = [(number * 7 + at * at) % VOCABULARY for at in range(move.prompt)]
        common = [(at * 5 + 3) % VOCABULARY for at in range(min(move.prompt, _COMMON))]
        return TokenRequest(
            id=RequestId(f"r{number}"),
            prompt=(*common, *own[len(common) :]) if move.is_alike else tuple(own),
            sampling=Sampling(
                max_tokens=move.new,
                temperature=0.8 if move.samples else 0.0,
                seed=number,
                stop_token_ids=frozenset(range(0, VOCABULARY, 9) if move.stops else ()),
                logprobs=move.samples,
            ),
            deadline=math.inf if move.patience is None else self._engine.deadline(move.patience),
            cache_salt=b"" if move.is_alike else None,
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
        except asyncio.CancelledError:
            if not case.has_left:
                raise

    def _leave(self, which: int) -> None:
        reading = [task for task in self._tasks if not task.done()]
        if reading:
            task = reading[which % len(reading)]
            self._tasks[task].has_left = True
            task.cancel()

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

    async def _pass(self, steps: int) -> None:
        for _ in range(steps):
            if not self._engine.is_busy:
                return
            await self._engine.one_step()
            await self._settle()

    async def _settle(self) -> None:
        """Readers get what has come, and a generation that drains and has nobody left is let go."""
        for _ in range(4):
            await asyncio.sleep(0)
        self._engine.look()
        for old in [each for each in self._draining if not each.users]:
            self._draining.remove(old)
            old.advance(State.RETIRED)
            assert old.model is not None
            await self._engine.forget(old.model)
            old.let_go()

    def _new_model(self, slot: int) -> PagedModel:
        return PagedModel(next(self._weights), slot + 1, self._engine.arena)


def play(setting: Setting, moves: Ordered[Move], seen: Seen) -> None:
    """Makes all moves on an event loop of their own; raises at the first thing that may not be."""
    with capture_logs() as log:
        asyncio.run(_play(setting, moves, seen))
    assert [] == [entry for entry in log if entry["event"] in _UNHEARD_OF]


async def _play(setting: Setting, moves: Ordered[Move], seen: Seen) -> None:
    """One engine after the other; the last one comes to rest before it stops."""
    numbers = (itertools.count(), itertools.count(1, 2))
    left = list(moves)
    while True:
        pressed = PressedEngine(WatchedEngine.of(setting), seen, numbers)
        async with pressed.running():
            while left and not isinstance(left[0], Restart):
                await pressed.make(left.pop(0))
            if not left:
                await pressed.rest()
        if not left:
            return
        left.pop(0)
