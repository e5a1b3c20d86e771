"""When a publish is taken into service, and when it has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.common.ids import Cohort, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure, Stage, Strategy
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationRecord,
    GenerationState,
    Serving,
    Target,
    TextFailure,
)
from services.scheduler.patience import Patience
from services.scheduler.rollout import Commit, Fail, Step, steps_due
from tests.unit.scheduler.builders import (
    ARTIFACT,
    OTHER,
    SERVING_KEY,
    TARGET_KEY,
    engine_record,
    gateway,
    generation,
    standing,
    target,
)

BOTH = Strategy(min_ready=2)
FAILED = generation(state=GenerationState.FAILED).model_copy(update={"error": "no room"})
WARMING = generation(state=GenerationState.WARMING)
COMMIT = Commit(TARGET_KEY, target(), (ProcessId("e"),), ())


def names(*ids: str) -> tuple[ProcessId, ...]:
    return tuple(map(ProcessId, ids))


def due(
    *,
    wanted: Target | None = None,
    now: Serving | None = None,
    held: Sequence[GenerationRecord] = (generation(),),
    engines: Sequence[EngineRecord] | None = None,
    gateways: Sequence[GatewayRecord] = (gateway("g", ARTIFACT),),
    patience: Patience | None = None,
    now_s: float = 0,
) -> list[Step]:
    return steps_due(
        targets={TARGET_KEY: wanted or target()},
        serving={SERVING_KEY: now} if now else {},
        engines=[engine_record(generations=held)] if engines is None else engines,
        gateways=gateways,
        patience=patience or Patience(60),
        now_s=now_s,
    )


def two(first: GenerationRecord | None, second: GenerationRecord | None) -> list[EngineRecord]:
    """Two engines, with what each holds."""
    held = {"e1": first, "e2": second}
    return [engine_record(name, generations=[one] if one else []) for name, one in held.items()]


def asking(strategy: Strategy) -> Target:
    return target().model_copy(update={"strategy": strategy})


def why(steps: list[Step]) -> Failure:
    """The failure that is the only step."""
    (step,) = steps
    assert isinstance(step, Fail)
    return step.failure


def test_a_ready_target_is_served() -> None:
    """One engine and every gateway are ready: it is committed, and nobody is waited for."""
    assert [COMMIT] == due()


def engine(name: str, *held: GenerationRecord) -> EngineRecord:
    return engine_record(name, generations=held)


OLD = generation(OTHER)
NEW = generation(revision=2)
ON_ITS_WAY = generation(revision=2, state=GenerationState.WARMING)
GIVEN_UP = generation(revision=2, state=GenerationState.FAILED).model_copy(update={"error": "no room"})


@pytest.mark.parametrize(
    ("second", "is_due"),
    [
        ((OLD, ON_ITS_WAY), False),
        ((OLD,), False),
        ((OLD, GIVEN_UP), True),
        ((ON_ITS_WAY,), True),
        ((), True),
        ((OLD, NEW), True),
    ],
    ids=["is warming up", "has not begun", "has failed", "answers nobody", "is new", "is ready"],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_whoever_answers_now_is_waited_for_unless_the_publish_says_how_many(
    second: tuple[GenerationRecord, ...], *, is_due: bool, is_asked: bool
) -> None:
    """A commit lets go what serves: engines that are not ready for what comes would answer nobody.

    Fault injection: turns red when `_step` does not look at who is coming.
    """
    wanted = target(2).model_copy(update={"strategy": Strategy(min_ready=1)}) if is_asked else target(2)
    steps = due(wanted=wanted, now=standing(1, OTHER), engines=[engine("a", OLD, NEW), engine("b", *second)])
    assert bool(steps) is (is_due or is_asked)
    assert all(isinstance(step, Commit) for step in steps)


def test_whoever_answers_now_is_waited_for_only_so_long() -> None:
    """Then those who are ready serve, and the others stand in waiting_for."""
    patience, engines = Patience(60), [engine("a", OLD, NEW), engine("b", OLD, ON_ITS_WAY)]
    asked: dict[str, Any] = {
        "wanted": target(2),
        "now": standing(1, OTHER),
        "engines": engines,
        "patience": patience,
    }
    assert [] == due(**asked, now_s=5)
    assert [] == due(**asked, now_s=64)
    assert [Commit(TARGET_KEY, target(2), names("a"), names("b"))] == due(**asked, now_s=65)


@pytest.mark.parametrize(
    ("wanted", "now"),
    [
        (target(), standing()),
        (target(1), standing(2, OTHER)),
        (target(2, None), standing()),
        (target(1), standing(2, None)),
    ],
    ids=["served already", "older", "withdrawn", "older than a withdrawal"],
)
def test_what_is_served_or_older_or_withdrawn_is_left_alone(wanted: Target, now: Serving) -> None:
    """A late view moves nothing back, and what is unpublished is withdrawn by whoever unpublishes it."""
    assert [] == due(wanted=wanted, now=now)


@pytest.mark.parametrize("now", [standing(2, None), standing(2, OTHER)], ids=["withdrawn", "rolled back"])
def test_a_newer_revision_is_served(now: Serving) -> None:
    """After a withdrawal, and of an older artifact: a rollback is a publish like any other."""
    assert [COMMIT._replace(target=target(3))] == due(
        wanted=target(3), now=now, held=[generation(revision=3)]
    )


@pytest.mark.parametrize(
    "held",
    [
        [],
        [WARMING],
        [generation(OTHER)],
        [generation(revision=2)],
        [generation().model_copy(update={"cohort": Cohort.CANARY})],
        [generation().model_copy(update={"model": ModelName("other")})],
        [FAILED.model_copy(update={"revision": Revision(7)})],
    ],
    ids=["nothing", "warming", "artifact", "revision", "cohort", "model", "failed at another"],
)
def test_without_an_engine_ready_for_exactly_it_nothing_happens(held: list[GenerationRecord]) -> None:
    """State, artifact, revision, cohort and model must all be the target's."""
    assert [] == due(held=held)


@pytest.mark.parametrize(
    "gateways",
    [[], [gateway("g")], [gateway("g", ARTIFACT), gateway("h", OTHER)]],
    ids=["none", "unready", "one of two"],
)
def test_until_every_gateway_is_ready_nothing_happens(gateways: list[GatewayRecord]) -> None:
    """At least one gateway, and all of them, must have the tokenizer."""
    assert [] == due(gateways=gateways)


def test_cohorts_move_on_their_own() -> None:
    """One cohort's unready target does not hold up another's."""
    steps = steps_due(
        targets={keys.target(ModelName("m"), Cohort.CANARY): target(2, OTHER), TARGET_KEY: target()},
        serving={},
        engines=[engine_record(generations=[generation()])],
        gateways=[gateway("g", ARTIFACT, OTHER)],
        patience=Patience(60),
        now_s=0,
    )
    assert [COMMIT] == steps


def test_who_lags_behind_is_told_with_the_commit() -> None:
    """One of two is enough where nobody asks for more; the other, also one that failed, is waited for on.

    Fault injection: turns red when `_step` asks whether any engine has failed before it counts those that are ready.
    """
    for other in (None, WARMING, FAILED):
        (step,) = due(engines=two(generation(), other))
        assert COMMIT._replace(ready=names("e1"), waiting_for=names("e2")) == step


def test_an_engine_for_other_models_is_not_waited_for() -> None:
    """Engines tell what they are for."""
    apart = [
        engine_record(name, generations=[]).model_copy(update={"serves": serves})
        for name, serves in (("e3", ("n",)), ("e4", ("m@canary",)), ("e5", ("m@stable",)), ("e6", ("n", "m")))
    ]
    (step,) = due(engines=[*two(generation(), None), *apart])
    assert COMMIT._replace(ready=names("e1"), waiting_for=names("e2", "e5", "e6")) == step


def test_as_many_engines_as_it_asks_for_must_be_ready() -> None:
    """min_ready of the target. Fault injection: turns red when `_step` takes MIN_READY for all."""
    assert [] == due(wanted=asking(BOTH), engines=two(generation(), WARMING))
    assert [Commit(TARGET_KEY, asking(BOTH), (ProcessId("e1"), ProcessId("e2")), ())] == due(
        wanted=asking(BOTH), engines=two(generation(), generation())
    )


@pytest.mark.parametrize(
    ("strategy", "engines", "expected"),
    [
        (Strategy(), two(FAILED, FAILED), "no engine can serve m: no room"),
        (BOTH, two(generation(), FAILED), "of 2 engines that must, too few can serve m: no room"),
    ],
    ids=["all failed", "too few left"],
)
def test_it_fails_at_once_when_no_waiting_helps(
    strategy: Strategy, engines: list[EngineRecord], expected: str
) -> None:
    """Not enough engines are left that have not failed."""
    assert expected == why(due(wanted=asking(strategy), engines=engines)).message


@pytest.mark.parametrize(
    ("strategy", "engines"),
    [(Strategy(), two(FAILED, WARMING)), (Strategy(), two(FAILED, None)), (BOTH, two(generation(), None))],
    ids=["one warms", "one has not begun", "two asked for"],
)
def test_while_enough_engines_may_yet_be_ready_it_has_not_failed(
    strategy: Strategy, engines: list[EngineRecord]
) -> None:
    """One that has not begun counts among them."""
    assert [] == due(wanted=asking(strategy), engines=engines)


def unread(**changes: Any) -> GatewayRecord:
    failure = TextFailure(
        artifact_id=ARTIFACT, error="it is torn", model=ModelName("m"), revision=Revision(1)
    )
    failing = {"text_failures": (failure.model_copy(update=changes),)}
    return gateway("g").model_copy(update=failing)


def test_it_fails_when_a_gateway_cannot_read_its_text() -> None:
    """All gateways must, so one is enough; the stage says that it is the text."""
    expected = Failure(
        stage=Stage.TEXT, reason="TEXT_MODEL_FAILED", message="gateway g cannot serve m: it is torn"
    )
    assert expected == why(due(gateways=[gateway("f", ARTIFACT), unread()]))


@pytest.mark.parametrize(
    "other", [{"artifact_id": OTHER}, {"revision": 0}, {"model": "n"}, {"cohort": Cohort.CANARY}]
)
def test_what_a_gateway_failed_at_otherwise_is_no_failure_of_it(other: dict[str, Any]) -> None:
    """Of another artifact, for another model, or before. Turns red when: `progress` compares the artifact alone."""
    assert [] == due(gateways=[unread(**other)])


def test_it_fails_when_the_others_take_too_long() -> None:
    """Counted from the first engine that is ready; who is waited for is named, also who has left since the last commit.

    Fault injection: turns red when `progress` leaves out `away`, or `Patience.is_over` counts from every question anew.
    """
    patience, engines = Patience(60), two(generation(revision=2), None)
    wanted = target(2).model_copy(update={"strategy": Strategy(min_ready=4)})
    told: dict[str, Any] = {"wanted": wanted, "engines": engines, "patience": patience}
    served = standing(1, OTHER).model_copy(update={"ready": ("e1", "e3")})
    assert [] == due(**told, now=served, now_s=100)
    assert 160 == patience.next_end_s(100)
    assert [] == due(**told, now=served, now_s=159)
    failure = why(due(**told, now=served, now_s=160))
    assert (Stage.COMMIT, "WAITED_FOR") == (failure.stage, failure.reason)
    expected = (
        "its time is over with 1 of 4 engines ready; waited for e2, e3, 1 more engine (it has 2 of 4 engines that must "
        "be ready: start more, or publish with a smaller --min-ready)"
    )
    assert expected == failure.message
    assert patience.next_end_s(160) is None


def test_a_publish_has_the_time_that_it_asks_for() -> None:
    """timeout_ms of the target."""
    wanted, patience = asking(Strategy(min_ready=2, timeout_ms=1_500)), Patience(60)
    assert [] == due(wanted=wanted, patience=patience, now_s=1)
    assert 2.5 == patience.next_end_s(1)


def test_without_a_ready_engine_there_is_no_hurry() -> None:
    """A slow fetch is waited for."""
    patience = Patience(60)
    assert [] == due(held=[WARMING], patience=patience)
    assert patience.next_end_s(0) is None


def test_the_time_of_a_publish_that_has_ended_is_forgotten() -> None:
    """Whichever way: nothing wakes for it."""
    patience = Patience(60)
    assert [] == due(wanted=asking(BOTH), patience=patience)
    assert [] == due(now=standing(), patience=patience)
    assert patience.next_end_s(0) is None


def test_what_has_failed_is_not_tried_again() -> None:
    """Its failure stands, whatever engines say later."""
    failure = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")
    assert [] == due(wanted=target().model_copy(update={"failure": failure}))
