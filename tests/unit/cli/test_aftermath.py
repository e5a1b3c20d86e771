"""What is said to serve once a publish has failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli import status as status_command
from services.cli.aftermath import aftermath

OLD, NEW = "a" * 64, "b" * 64
ACTIVE, FETCHING = types_pb2.GENERATION_STATE_ACTIVE, types_pb2.GENERATION_STATE_FETCHING
DRAINING, FAILED = types_pb2.GENERATION_STATE_DRAINING, types_pb2.GENERATION_STATE_FAILED
OUT = "m@stable is served by no engine any more: publish again"
Held = tuple[str, str, types_pb2.GenerationState]  # cohort, artifact, state


def failed(served: str, *held: Held) -> pb.Status:
    """A status in which a publish of `NEW` has failed, and an engine for each generation given."""
    cohort = pb.CohortStatus(
        model="m",
        cohort="stable",
        desired_revision=2,
        desired_artifact_id=NEW,
        desired_state=pb.PUBLISH_STATE_FAILED,
        serving_revision=1 if served else 0,
        serving_artifact_id=served,
    )
    generations = (
        pb.GenerationStatus(model="m", cohort=cohort_name, artifact_id=artifact_id, state=state)
        for cohort_name, artifact_id, state in held
    )
    engines = [pb.ProcessStatus(role="engine", generations=[each]) for each in generations]
    return pb.Status(cohorts=[cohort], processes=engines)


@pytest.mark.parametrize(
    ("served", "held", "expected"),
    [
        ("", [("stable", NEW, FAILED)], "nothing was served before"),
        (OLD, [("stable", NEW, FAILED), ("stable", OLD, ACTIVE)], "what was served before serves on"),
        (OLD, [("stable", OLD, FETCHING)], "what was served before is being loaded again"),
        (OLD, [("stable", NEW, FAILED)], "nothing serves any more (publish again)"),
        (OLD, [("stable", OLD, DRAINING)], "nothing serves any more (publish again)"),
        (OLD, [("canary", OLD, ACTIVE)], "nothing serves any more (publish again)"),
    ],
    ids=["first", "beside", "coming back", "gone", "going", "of another cohort"],
)
def test_what_serves_is_what_engines_have(
    served: str, held: Sequence[Held], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What gateways route to may be nowhere; a status then says so, too, and shows no revision that serves.

    Fault injection: turns red when `_states` asks for anything of the cohort, or `is_out` is always false.
    """
    seen = failed(served, *held)
    assert expected == aftermath(seen, "m", "stable")
    status_command.show(seen, as_json=False)
    shown = capsys.readouterr().out
    assert ["nothing serves" in expected] * 2 == [OUT in shown, "nothing" in shown]


def test_while_it_is_pending_nobody_is_told_to_publish(capsys: pytest.CaptureFixture[str]) -> None:
    """A publish that drains first is an outage by itself. Turns red when: `is_out` does not look at the state."""
    seen = failed(OLD)
    seen.cohorts[0].desired_state = pb.PUBLISH_STATE_PENDING
    status_command.show(seen, as_json=False)
    assert OUT not in capsys.readouterr().out


def test_without_a_status_nothing_is_claimed() -> None:
    """The gateway may be gone by then."""
    assert "halogen status says what serves" == aftermath(pb.Status(), "m", "stable")
