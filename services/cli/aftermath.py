"""What serves once a publish has failed, by what engines have: gateways may route to what no engine has any more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.control_client import ControlClient

_SETTLE_S: Final = 3.0  # for an engine that is about to load again what it had let go
_ACTIVE: Final = types_pb2.GENERATION_STATE_ACTIVE
_LOADING: Final = frozenset(
    {
        types_pb2.GENERATION_STATE_FETCHING,
        types_pb2.GENERATION_STATE_VERIFYING,
        types_pb2.GENERATION_STATE_ALLOCATING,
        types_pb2.GENERATION_STATE_WARMING,
    }
)


def aftermath(status: pb.Status, model: str, cohort: str) -> str:
    """The end of "It has FAILED, and"."""
    named = [each for each in status.cohorts if (each.model, each.cohort) == (model, cohort)]
    if not named:
        return "halogen status says what serves"
    if not named[0].serving_artifact_id:
        return "nothing was served before"
    states = _states(status, named[0])
    if _ACTIVE in states:
        return "what was served before serves on"
    if not states.isdisjoint(_LOADING):
        return "what was served before is being loaded again"
    return "nothing serves any more (publish again)"


def is_out(status: pb.Status, cohort: pb.CohortStatus) -> bool:
    """Whether its publish has failed, and what gateways route to is nowhere, not even on its way."""
    is_left = cohort.desired_state == pb.PUBLISH_STATE_FAILED and bool(cohort.serving_artifact_id)
    return is_left and _states(status, cohort).isdisjoint({_ACTIVE, *_LOADING})


async def settled(control: ControlClient, model: str) -> pb.Status:
    """The status after a publish has failed, once engines have had the time to go back to what they served before."""
    status = pb.Status()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S), contextlib.aclosing(control.watch()) as statuses:
            async for status in statuses:
                if not any(is_out(status, each) for each in status.cohorts if each.model == model):
                    break
    return status


def _states(status: pb.Status, cohort: pb.CohortStatus) -> set[types_pb2.GenerationState]:
    """Of what engines have of what the cohort's gateways route to."""
    wanted = (cohort.model, cohort.cohort, cohort.serving_artifact_id)
    return {
        one.state
        for process in status.processes
        for one in process.generations
        if (one.model, one.cohort, one.artifact_id) == wanted
    }
