"""How a publish stands, as people read it."""

from __future__ import annotations

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.common.control_characters import escaped


def state_name(state: pb.PublishState) -> str:
    """For example FAILED."""
    return pb.PublishState.Name(state).removeprefix("PUBLISH_STATE_")


def stage_name(stage: types_pb2.Stage) -> str:
    """For example WARM_UP."""
    return types_pb2.Stage.Name(stage).removeprefix("STAGE_")


def outcome_text(outcome: pb.PublishOutcome) -> str:
    """The state, and what belongs to it."""
    state = state_name(outcome.state)
    if outcome.HasField("failure"):
        failure = outcome.failure
        return f"{state} ({stage_name(failure.stage)}, {failure.reason}): {escaped(failure.message)}"
    if outcome.superseded_by:
        return f"{state} by {outcome.superseded_by}"
    return f"{state}, waiting for {', '.join(outcome.waiting_for)}" if outcome.waiting_for else state
