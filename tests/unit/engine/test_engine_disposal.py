"""How models are let go: off the event loop, once, and with nobody hearing of it when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from services.common.background import background
from services.common.errors import CorruptData
from services.common.registry.records import GenerationState as State
from services.engine.disposal import Disposal
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose
from services.engine.named import Pair
from tests.unit.engine.fakes import CountingModel, Gate, request, warming_generation
from tests.unit.engine.generation_world import CANARY, MODEL, NEW, OLD, THIRD, world


def _ended(model: CountingModel) -> Generation:
    made = warming_generation(model)
    made.advance(State.SUPERSEDED)
    return made


async def test_a_model_is_dropped_in_another_thread() -> None:
    """The event loop, which answers requests, never unmaps.

    Fault injection: turns red when Disposal calls `let_go` without a thread.
    """
    threads: list[int] = []
    made = _ended(CountingModel())
    weakref.finalize(made.model, lambda: threads.append(threading.get_ident()))
    disposal = Disposal()
    async with background(disposal.work()):
        disposal.take(made)
        await disposal.settled()
    assert 1 == len(threads)
    assert threading.get_ident() not in threads


async def test_a_disposal_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the next one is let go all the same.

    Fault injection: turns red when `_dispose` lets the failure pass.
    """
    outcomes: Iterator[Exception | None] = iter([OSError("cannot unmap"), None])
    let_go = Generation.let_go

    def failing(generation: Generation) -> None:
        if failure := next(outcomes):
            raise failure
        let_go(generation)

    monkeypatch.setattr(Generation, "let_go", failing)
    disposal, first, second = Disposal(), _ended(CountingModel()), _ended(CountingModel())
    async with background(disposal.work()):
        disposal.take(first)
        disposal.take(second)
        await disposal.settled()
    assert (True, False) == (first.model is not None, second.model is not None)


async def test_a_cache_that_cannot_be_cleared_lets_its_model_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and disturbs nobody: the engine goes on swapping, and what it lets go is unmapped.

    Fault injection: turns red when `Disposal._free` lets the model go only once all is forgotten, or when
    `GenerationManager._act` forgets by itself.
    """

    async def failing(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Engine, "forget", failing)
    models = list[weakref.ref[CountingModel]]()
    async with world() as it:
        for artifact in (OLD, NEW, OLD, NEW):
            it.models.pop(artifact, None)
            await it.serve(artifact, await it.target(artifact))
            await it.until({artifact: State.ACTIVE}.__eq__)
            models.append(weakref.ref(it.models.pop(artifact)))
        async with it.run(NEW, request(max_tokens=1)) as stream:
            assert [] != [piece async for piece in stream]
        await it.manager.disposal.settled()
        gc.collect()
        assert [True, True, True, False] == [model() is None for model in models]


async def test_what_is_decided_is_done_before_anything_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that takes long to clear holds up no call-off, of a load that may have ended by itself by then.

    Fault injection: turns red (the engine ends by a KeyError) when `GenerationManager._act` waits for `Engine.forget`.
    """
    forgetting, go_on = asyncio.Event(), asyncio.Event()

    async def forget(*_: object) -> None:
        forgetting.set()
        await go_on.wait()

    monkeypatch.setattr(Engine, "forget", forget)
    async with world(ticket_ttl_s=0) as it:
        decide, lists = it.generations.decide, list[list[Action]]()

        def note(now_s: float) -> list[Action]:
            lists.append(decide(now_s))
            return lists[-1]

        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        it.loader.held[THIRD], it.loader.failures[THIRD] = asyncio.Event(), [CorruptData("torn")]
        await it.target(THIRD, CANARY)
        with it.generations.borrow(OLD):
            await it.serve(NEW, await it.target(NEW))
            await it.until(
                lambda states: states == {OLD: State.DRAINING, NEW: State.ACTIVE, THIRD: State.FETCHING}
            )
            monkeypatch.setattr(it.generations, "decide", lambda _: [])
            await it.target(None, CANARY)
            while Pair(MODEL, CANARY) in it.generations.desired:  # noqa: ASYNC110  # a view tells of no such thing
                await asyncio.sleep(0)
            monkeypatch.setattr(it.generations, "decide", note)
        await forgetting.wait()
        it.loader.held[THIRD].set()
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        await it.manager.disposal.settled()
    assert {Dispose, CancelLoad} == {type(each) for each in next(filter(None, lists))}


async def test_a_model_whose_load_was_called_off_is_let_go() -> None:
    """Made in its thread after nobody wanted it any more, it goes the way of those that have served: in a thread.

    Fault injection: turns red when GenerationLoad gives `run_stoppable` an undo that does nothing.
    """
    gate, threads = threading.Event(), list[int]()
    async with world() as it:

        def build() -> CountingModel:
            assert gate.wait(10)
            model = CountingModel()
            weakref.finalize(model, lambda: threads.append(threading.get_ident()))
            return model

        it.building[OLD] = build
        await it.target(OLD)
        await asyncio.to_thread(it.begun.wait, 10)
        await it.target(NEW)
        await it.until(lambda states: states.get(OLD) is State.SUPERSEDED)
        gate.set()
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        await it.manager.disposal.settled()
    assert 1 == len(threads)
    assert threading.get_ident() not in threads


async def test_a_model_whose_warm_up_was_called_off_is_let_go_at_once() -> None:
    """Without a garbage collection: an engine at rest makes none, and would keep the weights mapped.

    Fault injection: turns red when `GenerationLoad.run` lets the frames be of what was called off.
    """
    gate, models = Gate(), list[weakref.ref[CountingModel]]()

    def build() -> CountingModel:
        model = CountingModel(before=gate)
        models.append(weakref.ref(model))
        return model

    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        with _uncollected():
            it.building[NEW] = build
            await it.target(NEW)
            await asyncio.to_thread(gate.reached.acquire)
            await it.target(OLD)
            await it.until(lambda states: states.get(NEW) is State.SUPERSEDED)
            gate.open(steps=100)
            await it.until(lambda states: states == {OLD: State.ACTIVE})
            await it.manager.disposal.settled()
            assert [None] == [model() for model in models]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing is freed meanwhile but by the last reference to it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
