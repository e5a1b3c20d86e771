"""What is due, row by row: the decisions about generations, without thread, loader or registry."""

from __future__ import annotations

import pytest

from services.common.errors import CorruptData, NotFound, Overloaded, PreconditionFailed, Unavailable
from services.common.ids import Revision
from services.common.registry.publish_records import Failure, Stage, Strategy
from services.common.registry.records import GenerationState as State
from services.engine.generation_action import CancelLoad, Dispose, Proceed, StartLoad
from services.engine.load_failure import CANDIDATE_TRIES
from tests.unit.engine.fakes import CountingModel
from tests.unit.engine.generation_world import NEW, OLD, THIRD
from tests.unit.engine.generations_alone import CANARY, TICKET_TTL_S, TIMEOUT_S, GenerationsAlone


def test_what_is_named_is_loaded_once() -> None:
    """Asked again, nothing more is due."""
    it = GenerationsAlone()
    it.target(OLD)
    [start] = it.decide()
    assert isinstance(start, StartLoad)
    assert (OLD, State.FETCHING) == (start.generation.artifact_id, start.generation.state)
    assert [] == it.decide()


@pytest.mark.parametrize("state", [State.FETCHING, State.VERIFYING, State.ALLOCATING, State.WARMING])
def test_a_newer_publish_calls_the_candidate_off_wherever_it_is(state: State) -> None:
    """SUPERSEDED at once; let go when its load has ended, and its warm-up with it; the old one never noticed.

    Fault injection: turns red when `_settle` leaves out one of the states, or `_let_go` does not ask `is_loading`.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    candidate = it.loads[NEW]
    for reached in (State.VERIFYING, State.ALLOCATING):
        if candidate.state is not state:
            it.generations.reached(candidate, reached)
    it.decide()
    if state is State.WARMING:
        it.generations.loaded(candidate, CountingModel())
    assert state is candidate.state
    it.target(THIRD)
    called_off, started = it.decide()
    assert (State.SUPERSEDED, CancelLoad(candidate)) == (candidate.state, called_off)
    assert isinstance(started, StartLoad)
    assert {OLD: State.ACTIVE, NEW: State.SUPERSEDED, THIRD: State.FETCHING} == it.states
    it.stop(NEW)
    assert ([Dispose(candidate)] if state is State.WARMING else []) == it.decide()
    assert {OLD: State.ACTIVE, THIRD: State.FETCHING} == it.states


def test_a_candidate_that_is_asked_for_again_waits_for_its_load_to_end() -> None:
    """There are never two loads of one artifact.

    Fault injection: turns red when SUPERSEDED generations are forgotten at once.
    """
    it = GenerationsAlone()
    for artifact in (OLD, NEW):
        it.target(artifact)
        it.decide()
    it.target(OLD)
    it.decide()
    assert {OLD: State.SUPERSEDED, NEW: State.SUPERSEDED} == it.states
    it.stop(OLD)
    [started] = it.decide()
    assert isinstance(started, StartLoad)
    assert (OLD, State.FETCHING) == (started.generation.artifact_id, started.generation.state)


def test_r_c10_an_older_load_that_ends_later_does_not_win() -> None:
    """A slow load is overtaken by a rollback to what is resident: it is disposed of, also when nobody called it off.

    Fault injection: turns red when `activate` does not ask again what is wanted.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    slow = it.make(NEW)
    back = it.target(OLD)
    it.hear()  # as the swap itself does
    assert not it.generations.activate(slow)
    assert State.SUPERSEDED is slow.state
    it.stop(NEW)
    assert [Dispose(slow)] == it.decide()
    assert {OLD: State.ACTIVE} == it.states
    assert [back] == [record.revision for record in it.generations.records]


def test_a_model_that_comes_after_its_load_was_called_off_is_disposed_of() -> None:
    """Its thread could not be stopped in time: the same way as for one that has served."""
    it = GenerationsAlone()
    it.target(OLD)
    it.decide()
    late = it.loads[OLD]
    it.target(NEW)
    it.decide()
    it.generations.loaded(late, CountingModel())
    assert State.SUPERSEDED is late.state
    it.stop(OLD)
    assert [Dispose(late)] == it.decide()


def test_the_old_one_drains_for_a_tickets_life_and_for_its_last_request() -> None:
    """ACTIVE until serving/ names its successor; RETIRED when no ticket can come in and nobody uses it; then let go.

    Fault injection: turns red when row DRAINING does not ask the time, or not for users.
    """
    it = GenerationsAlone()
    old = it.publish(OLD)
    revision = it.target(NEW)
    it.bring_up(NEW)
    assert {OLD: State.ACTIVE, NEW: State.ACTIVE} == it.states
    it.serve(NEW, revision)
    for _ in range(2):  # nobody uses it, but a ticket may
        assert [] == it.decide()
        assert {OLD: State.DRAINING, NEW: State.ACTIVE} == it.states
    assert [TICKET_TTL_S] == [it.generations.next_due_s]
    with it.generations.borrow(OLD):
        assert [None] == [it.generations.next_due_s]  # only its user can make something due
        it.now_s += TICKET_TTL_S
        assert [] == it.decide()
    assert it.now_s == it.generations.next_due_s
    assert [Dispose(old)] == it.decide()
    assert (State.RETIRED, {NEW: State.ACTIVE}) == (old.state, it.states)
    with pytest.raises(PreconditionFailed), it.generations.borrow(OLD):
        pass


def test_what_is_named_again_while_it_drains_serves_again_without_a_load() -> None:
    """A rollback to what is resident reads no disk."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.publish(NEW)
    assert {OLD: State.DRAINING, NEW: State.ACTIVE} == it.states
    it.target(OLD)
    assert [] == it.decide()
    assert {OLD: State.ACTIVE, NEW: State.ACTIVE} == it.states


def test_what_is_there_for_two_cohorts_goes_when_neither_names_it() -> None:
    """One generation, however many pairs."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.publish(OLD, CANARY)
    it.publish(NEW)
    assert {OLD: State.ACTIVE, NEW: State.ACTIVE} == it.states
    it.publish(NEW, CANARY)
    assert {OLD: State.DRAINING, NEW: State.ACTIVE} == it.states


def test_a_candidate_that_fails_stands_with_stage_and_reason_until_a_newer_publish() -> None:
    """It is not tried again by itself, and is when it is asked for anew; its model goes the way of all.

    Fault injection: turns red when FAILED has a move to FETCHING, or `_let_go` keeps the model of a failed one.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    candidate = it.make(NEW)
    error = CorruptData("logits are not finite", reason="NOT_FINITE")
    assert it.generations.failed(candidate, error)
    it.stop(NEW)
    assert [Dispose(candidate)] == it.decide()
    assert [] == it.decide()
    expected = Failure(stage=Stage.WARM_UP, reason="NOT_FINITE", message="logits are not finite")
    assert {OLD: None, NEW: expected} == {r.artifact_id: r.failure for r in it.generations.records}
    it.target(NEW)
    [started] = it.decide()
    assert isinstance(started, StartLoad)
    assert {OLD: State.ACTIVE, NEW: State.FETCHING} == it.states
    assert [candidate] == it.disposed


def test_an_engine_of_failures_alone_takes_no_tickets() -> None:
    """What has FAILED does not serve.

    Fault injection: turns red when `Generations.missing` counts FAILED generations.
    """
    it = GenerationsAlone()
    it.target(OLD)
    it.decide()
    assert it.generations.failed(it.loads[OLD], CorruptData("torn"))
    assert "no generation is ACTIVE" == it.generations.missing


def test_a_passing_fault_of_a_candidate_is_tried_so_often_and_then_ends() -> None:
    """R-E11: a load does not stay on its way for ever; what it waits for is told meanwhile.

    Fault injection: turns red when `may_pass` does not count.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    candidate = it.loads[NEW]
    for _ in range(CANDIDATE_TRIES - 1):
        it.generations.reached(candidate, State.VERIFYING)
        assert not it.generations.failed(candidate, Unavailable("the loader is starting"))
        assert (State.FETCHING, "the loader is starting") == (candidate.state, candidate.error)
    assert it.generations.failed(candidate, NotFound("no such artifact"))
    assert candidate.failure
    assert (State.FAILED, Stage.FETCH) == (candidate.state, candidate.failure.stage)


def test_memory_that_is_short_ends_a_candidate_and_never_what_is_served() -> None:
    """What gateways route to is needed whenever there is room: after a restart it is tried for ever.

    Fault injection: turns red when `may_pass` does not ask what is served.
    """
    short = Overloaded("needs 2 + holds 3 > 4", reason="MEMORY_GUARD", retry_after_s=10)
    it = GenerationsAlone()
    it.serve(OLD, it.target(OLD))
    it.decide()
    it.target(NEW)
    it.decide()
    assert it.generations.failed(it.loads[NEW], short)
    for _ in range(2 * CANDIDATE_TRIES):
        assert not it.generations.failed(it.loads[OLD], short)
    assert {OLD: State.FETCHING, NEW: State.FAILED} == it.states
    assert [Stage.GUARD] == [r.failure.stage for r in it.generations.records if r.failure]


def test_what_is_full_passes_for_one_that_is_warm_but_for_its_first_steps() -> None:
    """It keeps its model, and warms up again."""
    it = GenerationsAlone()
    it.target(OLD)
    it.decide()
    made = it.make(OLD)
    assert not it.generations.failed(made, Overloaded("the engine's KV memory is full; try again"))
    assert (State.WARMING, True) == (made.state, made.model is not None)


def test_a_swap_that_breaks_down_ends_the_candidate_alone() -> None:
    """Stage SWAP; the old one never stopped serving."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    made = it.make(NEW)
    it.generations.not_activated(made, RuntimeError("out of luck"))
    it.stop(NEW)
    it.decide()
    assert made.failure
    assert (Stage.SWAP, "INTERNAL") == (made.failure.stage, made.failure.reason)
    assert {OLD: State.ACTIVE, NEW: State.FAILED} == it.states


def test_a_revision_names_one_artifact_for_good() -> None:
    """Another one under the same revision is refused, counted once however often it is heard, and what stands serves.

    Fault injection: turns red when `Assignments._note` does not ask `_contradicted`.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    for _ in range(2):
        it.revision = Revision(it.revision - 1)
        it.target(NEW)  # under the revision that OLD has
        assert [] == it.decide()
    it.serve(NEW, it.revision)
    assert [] == it.decide()
    assert {OLD: State.ACTIVE} == it.states
    assert 1 == it.generations.conflicts
    it.publish(NEW)
    assert {OLD: State.DRAINING, NEW: State.ACTIVE} == it.states


def test_a_third_generation_of_a_cohort_waits_for_a_drain() -> None:
    """It says so, has not even files meanwhile, and goes on when the one before the last is unmapped, not only RETIRED.

    Fault injection: turns red when `take_place` says yes, `_has_room` counts no DRAINING ones or none of `_leaving`, or
    MOST_RESIDENT is 3.
    """
    it = GenerationsAlone()
    old = it.publish(OLD)
    with it.generations.borrow(OLD):
        it.publish(NEW)
        it.target(THIRD)
        it.decide()
        third = it.loads[THIRD]
        assert not it.generations.takes_place(third)
        it.allocate(THIRD)
        it.now_s += TICKET_TTL_S
        assert [] == it.decide()
        assert {OLD: State.DRAINING, NEW: State.ACTIVE, THIRD: State.ALLOCATING} == it.states
        assert third.error.startswith("waiting_for_drain")
    assert [Dispose(old)] == it.decide()
    assert [] == it.decide()  # it is unmapped only now
    assert [Proceed(third)] == it.decide()
    assert "" == third.error
    assert it.fetch(THIRD) in it.proceeding
    it.generations.loaded(third, CountingModel())
    assert it.generations.activate(third)


def test_what_is_let_go_has_its_place_until_it_is_unmapped_though_it_failed() -> None:
    """The way of a candidate that has failed: the next waits until its model is gone.

    Fault injection: turns red when `_has_room` does not ask `_leaving`.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.decide()
    candidate = it.make(NEW)
    assert it.generations.failed(candidate, CorruptData("logits are not finite"))
    it.stop(NEW)
    it.target(THIRD)
    dispose, start = it.decide()
    assert (Dispose(candidate), THIRD) == (dispose, start.generation.artifact_id)
    assert not it.generations.takes_place(it.loads[THIRD])
    it.settle()
    assert it.generations.takes_place(it.loads[THIRD])


def test_memory_that_the_loader_is_yet_to_let_go_is_waited_for_by_who_had_to_wait() -> None:
    """What went for it is unmapped here, and its files the loader keeps for a while: no reason to end at once.

    Fault injection: turns red when `_allocate` sets `has_drained` for WAITING_FOR_ALL alone.
    """
    short = Overloaded("needs 2 + holds 3 > 4", reason="MEMORY_GUARD", retry_after_s=10)
    it = GenerationsAlone()
    it.publish(OLD)
    with it.generations.borrow(OLD):
        it.publish(NEW)
        it.target(THIRD)
        it.decide()
        third = it.allocate(THIRD)
        it.now_s += TICKET_TTL_S
    it.settle()
    it.generations.reached(third, State.FETCHING)
    assert it.generations.has_waited(THIRD)
    assert not it.generations.failed(third, short)
    assert it.allocate(THIRD) in it.proceeding


def test_what_is_fetched_after_a_wait_has_the_rest_of_its_time() -> None:
    """The wait counts, the fetch does not: it may take as long as it takes, as it may without a wait.

    Fault injection: turns red when `_allocate` pauses no time, or `run_time` forgets what was waited.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    with it.generations.borrow(OLD):
        it.publish(NEW)
        it.target(THIRD)
        it.decide()
        third = it.allocate(THIRD)
        it.now_s += TIMEOUT_S - 1
        assert [] == it.decide()
    it.settle()
    it.generations.reached(third, State.FETCHING)
    it.now_s += TIMEOUT_S
    assert [] == it.decide()
    assert it.allocate(THIRD) in it.proceeding
    assert it.now_s + 1 == it.generations.next_due_s
    it.now_s += 1
    assert [CancelLoad(third)] == it.decide()


def test_an_old_failure_is_none_of_a_newer_publish() -> None:
    """Its load is still ending when the same artifact is published again: the newer one is loaded anew, and not FAILED.

    Fault injection: turns red when `HeldGeneration.shown_revision` is always the latest.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    first = it.target(NEW)
    it.decide()
    late = it.make(NEW)
    with late.use():  # the step loop has yet to let go of its warm-up
        it.now_s += TIMEOUT_S
        assert [CancelLoad(late)] == it.decide()
        second = it.target(NEW)
        assert [] == it.decide()
        it.stop(NEW)
        assert [] == it.decide()
        assert [(first, State.FAILED)] == shown(it)
        it.target(NEW, CANARY)
        assert [] == it.decide()
        assert [(first, State.FAILED)] == shown(it)
    dispose, started = it.decide()
    assert (Dispose(late), NEW) == (dispose, started.generation.artifact_id)
    assert [(second + 1, State.FETCHING), (second, State.FETCHING)] == shown(it)


def shown(it: GenerationsAlone) -> list[tuple[Revision, State]]:
    """What others are told of NEW."""
    return [(each.revision, each.state) for each in it.generations.records if each.artifact_id == NEW]


def test_a_candidate_that_never_served_makes_room_for_the_next() -> None:
    """ACTIVE and not committed when the next one was published: the one that serves is there, so it goes.

    Fault injection: turns red when `Assignments.replaced` asks for targets alone: the third would wait for ever.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.bring_up(NEW)
    it.target(THIRD)
    it.decide()
    third = it.allocate(THIRD)
    assert {OLD: State.ACTIVE, NEW: State.DRAINING, THIRD: State.ALLOCATING} == it.states
    it.now_s += TICKET_TTL_S
    assert Proceed(third) in it.settle()


def test_cohorts_have_room_of_their_own() -> None:
    """Two of stable and two of canary are four; one that both name counts for both."""
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW)
    it.bring_up(NEW)
    it.target(THIRD, CANARY)
    it.decide()
    assert it.allocate(THIRD) in it.proceeding


def test_a_candidate_that_takes_too_long_fails_where_it_is() -> None:
    """From ALLOCATING on, the wait for a drain included; before that it may take as long as it takes.

    Fault injection: turns red when `_bring_on` does not look at the time, or sets `allocating_since_s` anew.
    """
    it = GenerationsAlone()
    old = it.publish(OLD)
    it.publish(NEW)
    it.target(THIRD)
    it.decide()
    it.now_s += 2 * TIMEOUT_S
    with old.use():
        assert [] == it.decide()
        third = it.allocate(THIRD)
        it.now_s += TIMEOUT_S - 1
        assert [] == it.decide()
        assert it.now_s + 1 == it.generations.next_due_s
        it.now_s += 1
        assert [CancelLoad(third)] == it.decide()
    assert third.failure
    assert (Stage.ALLOCATION, "TIMEOUT") == (third.failure.stage, third.failure.reason)
    assert "waiting_for_drain" in third.failure.message
    it.stop(THIRD)
    it.decide()
    assert {NEW: State.ACTIVE, THIRD: State.FAILED} == it.states


def test_a_publish_says_how_long_its_load_may_take() -> None:
    """Its word wins over the engine's; of two publishes of one artifact, the more generous one's.

    Fault injection: turns red when `_due_s` takes the engine's time.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.target(NEW, strategy=Strategy(timeout_ms=1_000))
    it.decide()
    candidate = it.allocate(NEW)
    assert [it.now_s + 1] == [it.generations.next_due_s]
    it.target(NEW, CANARY, Strategy(timeout_ms=2_000))
    it.decide()
    assert [it.now_s + 2] == [it.generations.next_due_s]
    it.now_s += 2
    assert [CancelLoad(candidate)] == it.decide()
    assert candidate.failure
    assert "2 s after it could allocate" in candidate.failure.message


def test_what_is_served_is_never_late() -> None:
    """After a restart it comes as soon as it can: FAILED would leave gateways with nothing.

    Fault injection: turns red when `_due_s` does not ask what is served.
    """
    it = GenerationsAlone()
    it.serve(OLD, it.target(OLD))
    it.decide()
    served = it.make(OLD)
    it.now_s += 2 * TIMEOUT_S
    assert [] == it.decide()
    assert it.generations.next_due_s is None
    assert it.generations.activate(served)
