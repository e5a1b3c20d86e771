"""What is told of the checkpoint that serves."""

from __future__ import annotations

import datetime as dt

import pytest

from services.common.checkpoint_health import (
    ModelHealth,
    age_ms,
    checkpoint_health,
    problem_of,
    usage_percent,
)
from services.common.ids import Cohort, ModelName, Revision
from services.common.memory_guard import Bound
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import ProgressRecord

BOUNDS = (Bound("the control group", 1_000, 250), Bound("this host", 8_000, 4_001))


def health(model: str, *, age_ms: int | None = None, served: bool = True, problem: str = "") -> ModelHealth:
    duration_ms = None if age_ms is None else 7
    return ModelHealth(model, "stable", len(model), served, duration_ms, age_ms, problem)


@pytest.mark.parametrize(
    ("models", "active"),
    [
        ([health("a"), health("bb")], "a"),
        ([health("a"), health("bb", age_ms=500)], "bb"),
        ([health("a", age_ms=100), health("bb", age_ms=500)], "a"),
        ([health("a", age_ms=100, served=False), health("bb", age_ms=500)], "bb"),
        ([health("a", served=False)], None),
        ([], None),
    ],
)
def test_the_active_one_is_the_last_that_got_another_checkpoint(
    models: list[ModelHealth], active: str | None
) -> None:
    """Of those that are served."""
    told = checkpoint_health(models, BOUNDS, missing="", stale="").told
    assert (active, len(active) if active else None) == (told["active_model"], told["checkpoint_seq"])
    assert told["last_swap_ms"] == told["last_swap_duration_ms"]


@pytest.mark.parametrize(
    ("missing", "stale", "problem", "found"),
    [
        ("", "", "", (True, "ok")),
        ("", "away", "", (True, "degraded")),
        ("", "", "GRAPH, GRAPH_MISMATCH: another model", (True, "degraded")),
        ("no generation is ACTIVE", "", "", (False, "degraded")),
    ],
)
def test_only_what_serves_decides_whether_it_is_sound(
    missing: str, stale: str, problem: str, found: tuple[bool, str]
) -> None:
    """A candidate's failure and a lost registry are told, and make nothing unsound.

    Fault injection: turns red when `is_sound` asks for more than what is missing.
    """
    models = [health("a", problem=problem)]
    is_sound, told = checkpoint_health(models, BOUNDS, missing=missing, stale=stale)
    assert found == (is_sound, told["status"])


@pytest.mark.parametrize(
    ("desired", "applied", "actual", "is_well"),
    [(2, 2, 2, True), (3, 2, 2, True), (3, 2, 0, False), (1, 0, 0, False), (3, 3, 0, True)],
    ids=["serves", "swaps", "drains first", "starts", "unpublished"],
)
def test_what_is_published_and_serves_nothing_is_a_problem(
    desired: int, applied: int, actual: int, *, is_well: bool
) -> None:
    """Also in the middle of a drain_then_load that goes well: who asks is told to come back. Others serve: it is sound.

    Fault injection: turns red when `ModelHealth.of` knows no outage.
    """
    progress = ProgressRecord(
        model=ModelName("m"),
        cohort=Cohort.STABLE,
        desired_revision=Revision(desired),
        actual_revision=Revision(actual),
        state=None,
        state_version=1,
        applied_sequence_id=Revision(applied),
        expected_next_id=Revision(4),
    )
    told_of = ModelHealth.of(progress, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    is_sound, told = checkpoint_health([told_of, health("other")], BOUNDS, missing="", stale="")
    assert (True, "ok" if is_well else "degraded") == (is_sound, told["status"])
    assert is_well is not ("nothing of it serves now" in told["models"][0]["problem"])


def test_a_failure_is_told_with_how_it_ends() -> None:
    """It stands long after the failed candidate is gone."""
    failure = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")
    told = problem_of(failure, is_out=True)
    assert told.startswith(
        "GRAPH, GRAPH_MISMATCH: another model (this stands until a newer revision is applied: publish"
    )


def test_memory_is_that_of_the_nearest_limit() -> None:
    """In percent; without any limit nothing is used."""
    assert (50.0, 0.0) == (usage_percent(BOUNDS), usage_percent(()))


def test_an_age_is_never_negative() -> None:
    """Clocks of two hosts differ."""
    now = dt.datetime(2026, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
    assert [1_500, 0] == [age_ms(f"2026-01-01T00:00:{s}+00:00", now) for s in ("00.500", "03.000")]
