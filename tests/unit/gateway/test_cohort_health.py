"""What a gateway tells of its cohorts when it is asked for their checkpoints."""

from __future__ import annotations

import datetime as dt

import pytest

from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import Serving, Target
from services.gateway.cohort_health import cohort_healths
from services.gateway.status import Status

A = ArtifactId("a" * 64)
BAD = Failure(stage=Stage.TEXT, reason="BAD_TOKENIZER", message="no tokenizer")
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("failure", "problem"),
    [(None, ""), (BAD, "TEXT, BAD_TOKENIZER: no tokenizer")],
    ids=["pending", "failed"],
)
def test_a_candidate_changes_nothing_of_what_is_served(failure: Failure | None, problem: str) -> None:
    """Revision 2 serves whatever becomes of 3; why that has failed is told beside it."""
    status = Status(
        targets={
            "targets/m/stable": Target(revision=Revision(3), artifact_id=A, who="w", why="y", failure=failure)
        },
        serving={"serving/m/stable": Serving(revision=Revision(2), artifact_id=A)},
        processes=(),
        artifacts={},
        qualifications=(),
        commits={},
        is_stale=False,
    )
    [health] = cohort_healths(status, {"m@stable": True}, NOW)
    assert ("m", 2, True) == (health.model, health.sequence_id, health.is_served)
    assert problem == health.problem.partition(" (this stands")[0]
    [health] = cohort_healths(status, {}, NOW)
    assert not health.is_served
    assert (problem or "it is published, and nothing of it serves now") in health.problem
