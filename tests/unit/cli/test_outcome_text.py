"""How a publish stands, for people and for scripts."""

from __future__ import annotations

from typing import Any

import pytest

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.message_json import fields_of
from services.cli.outcome_text import outcome_text
from services.cli.status import _desired, _generation, _news

FAILURE = pb.Failure(stage=types_pb2.STAGE_WARM_UP, reason="NOT_FINITE", message="it answers nonsense")
FAILED = pb.PublishOutcome(revision=2, state=pb.PUBLISH_STATE_FAILED, failure=FAILURE)
SUPERSEDED = pb.PublishOutcome(revision=2, state=pb.PUBLISH_STATE_SUPERSEDED, superseded_by=3)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (pb.PublishOutcome(state=pb.PUBLISH_STATE_APPLIED), "APPLIED"),
        (
            pb.PublishOutcome(state=pb.PUBLISH_STATE_PENDING, waiting_for=["e1", "g1"]),
            "PENDING, waiting for e1, g1",
        ),
        (SUPERSEDED, "SUPERSEDED by 3"),
        (FAILED, "FAILED (WARM_UP, NOT_FINITE): it answers nonsense"),
    ],
)
def test_an_outcome_says_what_belongs_to_it(outcome: pb.PublishOutcome, expected: str) -> None:
    """By whom, for whom, at which stage and why."""
    assert expected == outcome_text(outcome)


def test_scripts_get_revisions_as_numbers() -> None:
    """And names for states."""
    told = fields_of(SUPERSEDED)
    assert (2, 3, "PUBLISH_STATE_SUPERSEDED") == (told["revision"], told["superseded_by"], told["state"])


def test_a_status_tells_of_a_publish_that_is_not_simply_served() -> None:
    """Its state, why it failed, who is waited for; nothing of all that otherwise."""
    named: dict[str, Any] = {"model": "m", "cohort": "stable", "desired_revision": 2}
    served = pb.CohortStatus(**named, desired_state=pb.PUBLISH_STATE_APPLIED)
    assert ("2", []) == (_desired(served), _news(served))
    served.waiting_for.append("e2")
    assert ("2", ["m@stable revision 2 waits for e2"]) == (_desired(served), _news(served))
    failed = pb.CohortStatus(**named, desired_state=pb.PUBLISH_STATE_FAILED, last_error=FAILURE)
    line = "m@stable revision 2 FAILED (WARM_UP, NOT_FINITE): it answers nonsense"
    assert ("2 FAILED", [line]) == (_desired(failed), _news(failed))


def test_a_status_tells_at_which_stage_a_generation_failed() -> None:
    """And the reason; engines of an older version tell the sentence alone."""
    held = pb.GenerationStatus(model="m", cohort="stable", revision=2, error="it answers nonsense")
    held.state = types_pb2.GENERATION_STATE_FAILED
    assert "m@stable revision 2 FAILED: it answers nonsense" == _generation(held)
    held.failure.CopyFrom(FAILURE)
    assert "m@stable revision 2 FAILED (WARM_UP, NOT_FINITE): it answers nonsense" == _generation(held)


def test_a_status_tells_of_what_a_registry_does_not_know() -> None:
    """Of what is served: that it is to be pushed, or why it is not there; nothing of what is there, or need not be."""
    served = pb.CohortStatus(model="m", cohort="stable", desired_revision=3, serving_revision=2)
    assert [] == _news(served)
    served.registry_sync_status = pb.REGISTRY_SYNC_STATUS_SYNCED
    assert [] == _news(served)
    served.registry_sync_status = pb.REGISTRY_SYNC_STATUS_PENDING
    assert ["m@stable revision 2 is to be pushed to the registry"] == _news(served)
    served.registry_sync_status = pb.REGISTRY_SYNC_STATUS_FAILED
    served.registry_failure.CopyFrom(
        pb.Failure(stage=types_pb2.STAGE_PUSH, reason="PUSH_REFUSED", message="it says no")
    )
    line = "m@stable revision 2 is served, and not in the registry (PUSH, PUSH_REFUSED): it says no"
    assert [line] == _news(served)
