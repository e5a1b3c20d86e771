"""drain_then_load: what serves finishes and goes before the next one is fetched."""

from __future__ import annotations

import pytest

from services.common.errors import CorruptData, Overloaded, Unavailable
from services.common.registry.publish_records import Failure, Stage, Strategy, SwapMode
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Served
from services.engine.generation import Generation
from services.engine.generation_action import CancelLoad, Dispose, Proceed
from services.engine.load_failure import CANDIDATE_TRIES
from tests.unit.engine.fakes import CountingModel
from tests.unit.engine.generation_world import NEW, OLD, THIRD, world
from tests.unit.engine.generations_alone import CANARY, POLICY, TICKET_TTL_S, TIMEOUT_S, GenerationsAlone

DRAINING_FIRST = Strategy(mode=SwapMode.DRAIN_THEN_LOAD)
SHORT = Overloaded("2 > 1", reason="MEMORY_GUARD")
STAYING_EMPTY = DRAINING_FIRST.model_copy(update={"fallback_on_failure": False})


def waiting(it: GenerationsAlone, strategy: Strategy = DRAINING_FIRST) -> Generation:
    """A candidate that was found suitable while OLD serves, and waits until that is gone."""
    it.publish(OLD)
    it.target(NEW, strategy=strategy)
    it.decide()
    candidate = it.loads[NEW]
    assert not it.generations.takes_place(candidate)
    assert {OLD: State.ACTIVE, NEW: State.FETCHING} == it.states
    it.generations.reached(candidate, State.ALLOCATING)
    it.decide()
    it.decide()
    assert {OLD: State.DRAINING, NEW: State.ALLOCATING} == it.states
    return candidate


def alone(it: GenerationsAlone, strategy: Strategy = DRAINING_FIRST) -> Generation:
    """The same, once nothing else is there: it is being fetched."""
    candidate = waiting(it, strategy)
    it.now_s += TICKET_TTL_S
    it.decide()
    assert candidate not in it.proceeding, "what serves is retired, and yet to be let go"
    it.decide()
    assert [Proceed(candidate)] == it.decide()
    it.generations.reached(candidate, State.FETCHING)
    assert {NEW: State.FETCHING} == it.states
    return candidate


def test_what_serves_drains_and_is_let_go_before_the_next_is_fetched() -> None:
    """Its tickets and requests are honoured; then its memory is free, and only then the new one takes any.

    Fault injection: turns red when `_waiting_for` does not ask `_leaving`, `decide` loads what is withheld, or a
    DRAINING one that yields is taken back.
    """
    it = GenerationsAlone()
    candidate = waiting(it)
    assert candidate.error.startswith("waiting_for_drain")
    with it.generations.borrow(OLD):
        it.now_s += TICKET_TTL_S
        assert [] == it.decide()
    [disposed] = it.decide()
    assert isinstance(disposed, Dispose)
    assert [] == it.decide()
    assert [Proceed(candidate)] == it.decide()
    it.generations.reached(candidate, State.FETCHING)
    assert [] == it.decide()
    made = it.make(NEW)
    assert it.generations.activate(made)
    it.stop(NEW)
    it.serve(NEW, it.revision)
    assert [] == it.decide()
    assert {NEW: State.ACTIVE} == it.states


def test_a_publish_says_whether_it_drains_first() -> None:
    """Its word wins over the engine's, either way."""
    it = GenerationsAlone(POLICY._replace(mode=SwapMode.DRAIN_THEN_LOAD))
    it.publish(OLD)
    it.target(NEW, strategy=Strategy(mode=SwapMode.ATOMIC_SWAP))
    it.bring_up(NEW)
    assert {OLD: State.ACTIVE, NEW: State.ACTIVE} == it.states
    it = GenerationsAlone(POLICY._replace(mode=SwapMode.DRAIN_THEN_LOAD))
    waiting(it, Strategy())


def test_what_this_engine_cannot_serve_lets_nothing_drain() -> None:
    """It is asked whether it fits before anything goes."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW, strategy=DRAINING_FIRST)
    it.decide()
    assert it.generations.failed(it.loads[NEW], CorruptData("no manifest"))
    it.stop(NEW)
    assert [] == it.decide()
    assert {OLD: State.ACTIVE, NEW: State.FAILED} == it.states


@pytest.mark.parametrize("is_said", [False, True])
def test_what_was_let_go_is_loaded_again_when_the_publish_fails(is_said: bool) -> None:
    """Here, before the leader says so, or by its word: gateways still route to it.

    Fault injection: turns red when `withheld` does not ask `failed`, or not `has_failed`.
    """
    it = GenerationsAlone()
    candidate = alone(it)
    if is_said:
        it.fail()
        assert CancelLoad(candidate) in it.decide()
    else:
        assert it.generations.failed(candidate, CorruptData("torn"))
    it.stop(NEW)
    it.bring_up(OLD)
    assert State.ACTIVE is it.states[OLD]


def test_without_fallback_nothing_is_loaded_until_a_newer_publish() -> None:
    """What was let go stays away; an engine that starts meanwhile has let nothing go, and loads what is served.

    Fault injection: turns red when `_is_withheld` takes every failure for a reason to load again, or forgets who let go.
    """
    it = GenerationsAlone()
    candidate = alone(it, STAYING_EMPTY)
    assert it.generations.failed(candidate, CorruptData("torn"))
    it.stop(NEW)
    assert [] == it.decide()
    it.fail()
    it.decide()
    assert {} == it.states
    fresh = GenerationsAlone()
    fresh.serve(OLD, fresh.target(OLD))
    fresh.target(NEW, strategy=STAYING_EMPTY)
    fresh.fail()
    fresh.bring_up(OLD)
    assert {OLD: State.ACTIVE} == fresh.states
    it.target(OLD)
    it.bring_up(OLD)
    assert {OLD: State.ACTIVE} == it.states


def test_without_fallback_what_is_still_here_stays() -> None:
    """A drain that has not ended is taken back: nothing is loaded for that."""
    it = GenerationsAlone()
    candidate = waiting(it, STAYING_EMPTY)
    it.now_s += TIMEOUT_S
    with it.generations.borrow(OLD):
        assert CancelLoad(candidate) in it.decide()
        it.decide()
    assert {OLD: State.ACTIVE, NEW: State.FAILED} == it.states


def test_a_newer_publish_takes_what_is_served_back() -> None:
    """The one that drained is SUPERSEDED; what gateways route to comes back beside the next one's load."""
    it = GenerationsAlone()
    candidate = alone(it)
    it.target(THIRD)
    it.decide()
    assert {NEW: State.SUPERSEDED, OLD: State.FETCHING, THIRD: State.FETCHING} == it.states
    assert State.SUPERSEDED is candidate.state


def test_an_engine_that_starts_loads_only_what_it_is_to_have() -> None:
    """There is no room for two: what gateways route to is not loaded first."""
    it = GenerationsAlone()
    it.target(NEW, strategy=DRAINING_FIRST, served=Served(revision=it.revision, artifact_id=OLD))
    it.decide()
    assert {NEW: State.FETCHING} == it.states
    assert it.generations.takes_place(it.loads[NEW])


def test_what_another_cohort_serves_stays() -> None:
    """It is no concern of the publish: the two are together in memory, or the guard has its word."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.publish(OLD, CANARY)
    it.target(NEW, strategy=DRAINING_FIRST)
    it.bring_up(NEW)
    assert {OLD: State.ACTIVE, NEW: State.ACTIVE} == it.states


def test_a_candidate_that_never_served_goes_too() -> None:
    """All that the cohort has here makes way."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(THIRD)
    it.bring_up(THIRD)
    it.target(NEW, strategy=DRAINING_FIRST)
    it.decide()
    it.generations.reached(it.loads[NEW], State.ALLOCATING)
    it.decide()
    assert {OLD: State.DRAINING, THIRD: State.DRAINING, NEW: State.ALLOCATING} == it.states


def test_memory_that_is_yet_to_be_let_go_by_the_loader_is_waited_for() -> None:
    """Others have gone for it: it would be a pity to give up at once; but nobody serves meanwhile, so it is for a minute.

    Fault injection: turns red when `may_pass` does not ask whether others have drained, or then does not count.
    """
    it = GenerationsAlone()
    candidate = alone(it)
    for _ in range(CANDIDATE_TRIES - 1):
        assert not it.generations.failed(candidate, SHORT)
    assert it.generations.failed(candidate, SHORT)
    assert Failure(stage=Stage.GUARD, reason="MEMORY_GUARD", message="2 > 1") == candidate.failure
    it.stop(NEW)
    it.decide()
    it.decide()
    assert {OLD: State.FETCHING, NEW: State.FAILED} == it.states


@pytest.mark.parametrize(
    ("comes_further", "expected"),
    [(False, (Stage.GUARD, "MEMORY_GUARD")), (True, (Stage.GRAPH, "TIMEOUT"))],
)
def test_what_is_tried_again_until_its_time_is_over_has_failed_by_its_last_fault(
    *, comes_further: bool, expected: tuple[Stage, str]
) -> None:
    """More time would not have helped, so that is no advice; one that has come further since is late, and nothing else.

    Fault injection: turns red when `timeout_of` is not told the fault, or `reached` forgets none.
    """
    it = GenerationsAlone()
    candidate = alone(it)
    assert not it.generations.failed(candidate, SHORT)
    if comes_further:
        it.generations.reached(candidate, State.VERIFYING)
    it.now_s += TIMEOUT_S
    assert CancelLoad(candidate) in it.decide()
    assert candidate.failure
    assert expected == (candidate.failure.stage, candidate.failure.reason)
    assert comes_further is ("longer --timeout-ms" in candidate.failure.message)
    assert comes_further is not candidate.failure.message.startswith("2 > 1; it was tried again until")


def test_a_try_that_fails_once_others_are_gone_is_made_again_without_a_wait() -> None:
    """It has the room already."""
    it = GenerationsAlone()
    candidate = alone(it)
    it.generations.reached(candidate, State.VERIFYING)
    assert not it.generations.failed(candidate, Unavailable("the loader is starting"))
    assert it.generations.takes_place(candidate)
    it.generations.reached(candidate, State.VERIFYING)
    it.generations.reached(candidate, State.ALLOCATING)
    assert [Proceed(candidate)] == it.decide()
    it.generations.loaded(candidate, CountingModel())
    assert it.generations.activate(candidate)


async def test_a_load_asks_first_whether_it_fits_and_fetches_last() -> None:
    """The loader prepares it when the old one is unmapped: its file is memory, too.

    Fault injection: turns red when GenerationLoad does not clear the way, or Disposal tells nobody.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        with it.generations.borrow(OLD):
            revision = await it.target(NEW, strategy=DRAINING_FIRST)
            await it.until(lambda states: states == {OLD: State.DRAINING, NEW: State.ALLOCATING})
            assert ([NEW], [OLD]) == (it.loader.checked, it.loader.asked)
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        assert [OLD, NEW] == it.loader.asked
        await it.serve(NEW, revision)
