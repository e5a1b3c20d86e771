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
from services.common.registry.records import GenerationState as State
from services.engine.disposal import Disposal
from services.engine.generation import Generation
from tests.unit.engine.fakes import CountingModel, Gate, warming_generation
from tests.unit.engine.generation_world import NEW, OLD, world


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
        await disposal.take(made)
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
        await disposal.take(first)
        await disposal.take(second)
        await disposal.settled()
    assert (True, False) == (first.model is not None, second.model is not None)


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
