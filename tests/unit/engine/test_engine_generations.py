"""Generations: which artifacts an engine holds, from a target in the registry to the last page given back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from services.common.errors import CorruptData, InternalError, PreconditionFailed, Unavailable
from services.common.ids import ModelName
from services.common.registry import keys
from services.common.registry.records import GenerationState as State
from services.engine.assignments import ServedPairs
from services.engine.generation import Generation
from services.engine.named import Pair
from services.engine.occupancy import Delta
from tests.unit.engine.decoding import prepared
from tests.unit.engine.fakes import CountingModel, Gate, request
from tests.unit.engine.generation_world import CANARY, MODEL, NEW, OLD, STABLE, THIRD, world
from tests.unit.engine.test_engine_weights import mapping_of


async def test_a_target_is_loaded_warmed_up_and_active() -> None:
    """The states come in order, the warm-up begins with a prefill and a decode, and requests may come in."""
    async with world() as it:
        revision = await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        on_the_way = [State.FETCHING, State.VERIFYING, State.ALLOCATING, State.WARMING, State.ACTIVE]
        assert on_the_way == list(dict.fromkeys(h[OLD] for h in it.history if h))
        assert [2, 1] == [len(step.token_ids) for step in it.models[OLD].steps[:2]]
        assert not it.generations.missing
        assert [(MODEL, STABLE, revision, "")] == [
            (r.model, r.cohort, r.revision, r.error) for r in it.records
        ]
        async with it.run(OLD, request(max_tokens=1)) as stream:
            assert 1 == len([piece async for piece in stream])


async def test_an_engine_that_holds_back_shows_itself_as_draining_and_honours_its_tickets() -> None:
    """Schedulers and the registry hear that nothing new may come, and why; what was granted is served.

    Fault injection: turns red when GenerationManager._tell leaves the occupancy as it is.
    """
    async with world() as it:
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        feed = it.engine.occupancy.watch()
        await anext(feed)
        it.generations.hold_back("it is stopping")
        delta = await anext(feed)
        assert isinstance(delta, Delta)
        assert [State.DRAINING] == [each.state for each in delta.generations or ()]
        assert [(State.DRAINING, "it is stopping")] == [(r.state, r.error) for r in it.records]
        assert "it is stopping" == it.generations.missing
        async with it.run(OLD, request(max_tokens=1)) as stream:
            assert 1 == len([piece async for piece in stream])
        it.generations.hold_back("")
        assert [(State.ACTIVE, "")] == [(r.state, r.error) for r in it.records]
        await feed.aclose()


async def test_an_artifact_that_is_active_already_is_reported_under_its_new_revision() -> None:
    """Published again, or for the other cohort, or rolled back to: nothing is loaded, and everybody hears of it.

    Turns red when: follow() does not tell the records after it has heard the registry.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        again, canary = await it.target(OLD), await it.target(OLD, CANARY)
        async with asyncio.timeout(10):
            while {(STABLE, again), (CANARY, canary)} - {(r.cohort, r.revision) for r in it.records}:
                it._moved.clear()
                await it._moved.wait()
        assert {State.ACTIVE} == {record.state for record in it.records}
        assert [OLD] == it.loader.asked


async def test_the_old_generation_serves_until_the_new_one_does_and_its_tickets_have_expired() -> None:
    """Load before unload: ACTIVE beside ACTIVE, then DRAINING once serving/ names the new one, then gone."""
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        revision = await it.target(NEW)
        await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.ACTIVE})
        await it.serve(NEW, revision)
        await it.until(lambda states: states.get(OLD) is State.DRAINING)
        with it.generations.borrow(OLD):
            pass  # a ticket granted before may still come in
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        with pytest.raises(PreconditionFailed) as refused, it.generations.borrow(OLD):
            pass
        assert "REVISION_RETIRED" == refused.value.reason


async def test_a_retired_generation_is_unmapped(artifacts: dict[str, Path]) -> None:
    """Once nobody uses it, its weights are no longer mapped by this process."""
    weights = prepared(artifacts["grouped"]).weights
    async with world() as it:
        it.loader.real[OLD] = prepared(artifacts["grouped"])
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        async with it.run(OLD, request(max_tokens=3)) as stream:
            assert [] != [piece async for piece in stream]
        assert {} != mapping_of(weights)
        await it.serve(NEW, await it.target(NEW))
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        async with it.run(NEW, request(max_tokens=1)) as stream:
            assert [] != [piece async for piece in stream]
        await it.manager.disposal.settled()
        assert {} == mapping_of(weights)


async def test_a_model_built_otherwise_than_stored_fails_before_it_warms(artifacts: dict[str, Path]) -> None:
    """The record names the graph's part and both values; no step was ever computed."""
    good = prepared(artifacts["grouped"])
    config = json.dumps(json.loads(good.config) | {"rope_theta": 500.0}).encode()
    async with world() as it:
        it.loader.real[OLD] = dataclasses.replace(good, config=config)
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FAILED})
        on_the_way = [State.FETCHING, State.VERIFYING, State.ALLOCATING, State.FAILED]
        assert on_the_way == list(dict.fromkeys(h[OLD] for h in it.history if h))
        assert "GRAPH_MISMATCH" in it.records[0].error
        assert "rope_theta 10000.0, not 500.0" in it.records[0].error


async def test_a_running_request_keeps_its_generation() -> None:
    """The drain outlasts the tickets while somebody still reads, and ends with him."""
    async with world(ticket_ttl_s=0.001) as it:
        gate, is_warm = Gate(), threading.Event()
        it.models[OLD] = CountingModel(lambda step: gate(step) if is_warm.is_set() else None)
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        is_warm.set()
        async with it.run(OLD, request(prompt=(1,), max_tokens=3)) as stream:
            it.models[NEW] = CountingModel()
            it.loader.held[NEW] = asyncio.Event()
            revision = await it.target(NEW)
            it.loader.held[NEW].set()
            gate.open()
            assert (2,) == (await anext(stream)).token_ids
            gate.open()  # the new one's warm-up shares the thread
            await it.serve(NEW, revision)
            gate.open(10)
            await it.until(lambda states: states.get(OLD) in {State.DRAINING, None})
            assert [3, 4] == [token async for piece in stream for token in piece.token_ids]
        await it.until(lambda states: states == {NEW: State.ACTIVE})


async def test_an_artifact_that_cannot_be_loaded_leaves_the_old_one_serving() -> None:
    """FAILED says why; publishing the old one again clears it away."""
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        it.loader.failures[NEW] = [CorruptData("block 3 of model.halogen does not match its digest")]
        await it.target(NEW)
        await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.FAILED})
        assert ["block 3 of model.halogen does not match its digest"] == [
            r.error for r in it.records if r.error
        ]
        with it.generations.borrow(OLD):
            pass
        back = await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        assert [back] == [r.revision for r in it.records]


async def test_a_warm_up_that_breaks_down_names_the_artifact() -> None:
    """Logits that are not finite are the weights' fault, and no request's: FAILED, with what to do.

    Fault injection: turns red when `warm_up` lets the failure of its request pass.
    """
    async with world() as it:
        it.models[OLD] = CountingModel(spoil=lambda _step, logits: logits.fill(np.nan))
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FAILED})
        assert f"artifact {OLD} gives logits that are not finite in its warm-up" in it.records[0].error
        assert "convert its source again" in it.records[0].error


async def test_a_failed_artifact_is_tried_again_when_it_is_published_again() -> None:
    """A higher revision of the same artifact is an operator's wish to try once more."""
    async with world() as it:
        it.loader.failures[OLD] = [CorruptData("torn")]
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FAILED})
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        assert [OLD, OLD] == it.loader.asked


async def test_a_loader_that_is_away_is_asked_again() -> None:
    """Unavailable is no failure of the artifact; what it waits for is told, and the log tells the tries apart.

    Fault injection: turns red when `GenerationLoad._run` does not count.
    """
    async with world() as it:
        it.loader.failures[OLD] = [Unavailable("the loader is starting"), Unavailable("still")]
        with capture_logs() as logs:
            revision = await it.target(OLD)
            await it.until(lambda states: states == {OLD: State.ACTIVE})
        assert 3 == len(it.loader.asked)
        begun = [(each["seq"], each["try"]) for each in logs if each["event"] == "checkpoint_start"]
        assert [(revision, number) for number in (1, 2, 3)] == begun
        assert State.FAILED not in {state for h in it.history for state in h.values()}


async def test_a_load_that_nobody_waits_for_any_more_is_given_up() -> None:
    """A newer target replaces one that is still being fetched."""
    async with world() as it:
        it.loader.held[OLD] = asyncio.Event()
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FETCHING})
        await it.target(NEW)
        await it.until(lambda states: states == {NEW: State.ACTIVE})


async def test_a_fresh_engine_loads_what_gateways_still_route_to() -> None:
    """Restarted in the middle of a publish, it serves the old artifact beside the new target."""
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        it.loader.held[NEW] = asyncio.Event()
        await it.target(NEW)
        await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.FETCHING})


async def test_a_rollback_takes_back_a_generation_that_is_still_draining() -> None:
    """It need not be loaded again."""
    async with world(ticket_ttl_s=60) as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        await it.serve(NEW, await it.target(NEW))
        await it.until(lambda states: states.get(OLD) is State.DRAINING)
        await it.target(OLD)
        await it.until(lambda states: states.get(OLD) is State.ACTIVE)
        assert [OLD, NEW] == it.loader.asked


async def test_a_registry_that_forgets_changes_nothing() -> None:
    """Deleted targets, and an outage, leave everything serving."""
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        await it.store.delete(keys.target(MODEL, STABLE))
        await it.store.delete(keys.serving(MODEL, STABLE))
        await it.target(NEW, cohort=CANARY)
        await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.ACTIVE})


async def test_what_is_unpublished_drains_and_goes() -> None:
    """A record without an artifact is the wish to unload: tickets granted before are honoured, then it is gone.

    Fault injection: Assignments.replaced waits for a successor of None to be active.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        revision = await it.target(None)
        await it.until(lambda states: states == {OLD: State.ACTIVE})  # gateways still route to it
        await it.serve(None, revision)
        await it.until(lambda states: states == {OLD: State.DRAINING})
        with it.generations.borrow(OLD):
            pass
        await it.until(lambda states: states == {})
        assert it.generations.missing
        again = await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        assert [again] == [r.revision for r in it.records]


async def test_what_is_unpublished_while_it_is_fetched_is_given_up() -> None:
    """Nobody waits for a load that nobody wants."""
    async with world() as it:
        it.loader.held[OLD] = asyncio.Event()
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FETCHING})
        await it.target(None)
        await it.until(lambda states: states == {})


async def test_what_is_unpublished_for_one_cohort_stays_for_the_other() -> None:
    """The generation goes on, and is reported for the cohort that still has it alone."""
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        canary = await it.target(OLD, cohort=CANARY)
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        await it.serve(None, await it.target(None))
        async with asyncio.timeout(10):
            while [(CANARY, canary, State.ACTIVE)] != [(r.cohort, r.revision, r.state) for r in it.records]:
                it._moved.clear()
                await it._moved.wait()


async def test_an_engine_serves_only_its_pairs() -> None:
    """`--serves m@canary` leaves stable and other models alone."""
    async with world(serves=("m@canary",)) as it:
        await it.target(OLD)
        await it.target(THIRD, model=ModelName("other"))
        await it.target(NEW, cohort=CANARY)
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        assert [NEW] == it.loader.asked


def test_serves_reads_models_and_cohorts() -> None:
    """A model alone means both cohorts; nothing means everything; an unknown cohort is refused."""
    pairs = [Pair(ModelName(m), c) for m in ("a", "b") for c in (STABLE, CANARY)]
    assert pairs == [p for p in pairs if ServedPairs.parse(()).include(p)]
    assert pairs[:2] + pairs[3:] == [p for p in pairs if ServedPairs.parse(("a", "b@canary")).include(p)]
    with pytest.raises(ValueError, match="blue"):
        ServedPairs.parse(("a@blue",))


def test_a_generation_makes_legal_moves_only() -> None:
    """Nothing skips its warm-up, nothing comes back from the dead, nobody's model is taken away."""
    made = Generation(OLD, lambda: None)
    with pytest.raises(InternalError, match="no way"):
        made.advance(State.ACTIVE)
    made.install(CountingModel())
    for state in (State.VERIFYING, State.ALLOCATING, State.WARMING, State.ACTIVE, State.DRAINING):
        made.advance(state)
    with made.use(), pytest.raises(InternalError, match="no way"):
        made.advance(State.RETIRED)
    made.advance(State.RETIRED)
    made.let_go()
    assert made.model is None
    with pytest.raises(InternalError, match="no way"):
        made.advance(State.ACTIVE)
