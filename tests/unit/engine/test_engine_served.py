"""What gateways route to stays here, or comes back."""

from __future__ import annotations

import pytest

from services.common.errors import CorruptData, HalogenError, PreconditionFailed
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Served
from services.engine.generation import Generation
from services.engine.generation_action import StartLoad
from tests.unit.engine.generation_world import NEW, OLD, THIRD
from tests.unit.engine.generations_alone import GenerationsAlone


def test_what_was_committed_stays_for_one_who_hears_of_the_next_publish_first() -> None:
    """The publish says what was served when it was accepted: that takes tickets on, and what came before it drains.

    Fault injection: turns red when `Assignments.hear` leaves out what a target says is served.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    committed = it.target(NEW)
    it.bring_up(NEW)
    it.target(THIRD, served=Served(revision=committed, artifact_id=NEW))
    it.decide()
    assert {OLD: State.DRAINING, NEW: State.ACTIVE, THIRD: State.FETCHING} == it.states
    it.serve(NEW, committed)
    assert [] == it.decide()


def test_what_a_publish_says_is_served_takes_nothing_back() -> None:
    """It was so when it was written: what serving/ has said since is newer."""
    it = GenerationsAlone()
    it.publish(OLD)
    first = it.revision
    it.publish(NEW)
    it.target(THIRD, served=Served(revision=first, artifact_id=OLD))
    it.decide()
    assert {OLD: State.DRAINING, NEW: State.ACTIVE, THIRD: State.FETCHING} == it.states


def failing(it: GenerationsAlone, error: Exception) -> Generation:
    """A candidate that failed here, and was committed because others have it."""
    revision = it.target(NEW)
    it.decide()
    candidate = it.make(NEW)
    assert it.generations.failed(candidate, error)
    it.stop(NEW)
    it.serve(NEW, revision)
    it.decide()
    assert {NEW: State.FAILED} == it.states
    return candidate


def test_what_is_served_and_failed_here_is_tried_again_without_end() -> None:
    """After pauses that double, shown as FAILED meanwhile: it is what everybody asks this engine for.

    Fault injection: turns red when `_may_try_again` leaves out the pause, or `_start` begins the pauses anew.
    """
    it = GenerationsAlone()
    candidate = failing(it, RuntimeError("out of luck"))
    assert [candidate] == it.disposed
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        assert [] == it.decide()
        assert it.now_s + pause_s == it.generations.next_due_s
        it.now_s += pause_s
        [started] = it.decide()
        assert isinstance(started, StartLoad)
        assert it.generations.failed(started.generation, RuntimeError("out of luck"))
        it.stop(NEW)
    it.decide()
    it.now_s += 60
    it.bring_up(NEW)
    assert {NEW: State.ACTIVE} == it.states


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (CorruptData("not finite", reason="NOT_FINITE"), Stage.WARM_UP),
        (PreconditionFailed("another graph", reason="GRAPH_MISMATCH"), Stage.GRAPH),
    ],
)
def test_what_failed_by_what_it_is_waits_for_a_newer_publish(error: HalogenError, stage: Stage) -> None:
    """Another try would find the same. Fault injection: turns red when `is_of_content` says no."""
    it = GenerationsAlone()
    failing(it, error)
    assert it.generations.next_due_s is None
    it.now_s += 1_000
    assert [] == it.decide()
    [record] = it.generations.records
    assert Failure(stage=stage, reason=error.reason, message=error.message) == record.failure


def test_a_candidate_that_failed_is_not_tried_again_by_itself() -> None:
    """Something else serves, and the leader ends its publish; in time means when somebody publishes it again."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    assert it.generations.failed(it.loads[NEW], RuntimeError("out of luck"))
    it.stop(NEW)
    it.decide()
    assert it.generations.next_due_s is None
    it.now_s += 1_000
    assert [] == it.decide()
    assert {OLD: State.ACTIVE, NEW: State.FAILED} == it.states
