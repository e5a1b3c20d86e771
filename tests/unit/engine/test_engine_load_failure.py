"""At which stage a load failed."""

from __future__ import annotations

import pytest

from services.common.errors import (
    CorruptData,
    HalogenError,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
    Unsupported,
)
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationState as State
from services.engine.load_failure import CANDIDATE_TRIES, failure_of, is_of_content, may_pass


@pytest.mark.parametrize(
    ("error", "state", "stage"),
    [
        (Unavailable("the store is gone"), State.FETCHING, Stage.FETCH),
        (PreconditionFailed("in other versions", reason="SOURCE_CHANGED"), State.FETCHING, Stage.FETCH),
        (CorruptData("block 3 is torn"), State.FETCHING, Stage.DIGEST),
        (CorruptData("another file", reason="IDENTITY_MISMATCH"), State.VERIFYING, Stage.DIGEST),
        (PreconditionFailed("other engine", reason="REQUIREMENTS_UNMET"), State.FETCHING, Stage.GRAPH),
        (CorruptData("a tensor is missing", reason="TENSORS_MISMATCH"), State.VERIFYING, Stage.GRAPH),
        (PreconditionFailed("topology", reason="GRAPH_MISMATCH"), State.ALLOCATING, Stage.GRAPH),
        (Unsupported("fp16 in bfloat16", reason="DTYPE_UNSUPPORTED"), State.VERIFYING, Stage.GRAPH),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), State.FETCHING, Stage.GUARD),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), State.ALLOCATING, Stage.GUARD),
        (Overloaded("tmpfs", reason="NO_ROOM_FOR_WEIGHTS"), State.FETCHING, Stage.GUARD),
        (Unavailable("weights cannot be mapped"), State.ALLOCATING, Stage.ALLOCATION),
        (CorruptData("NaN", reason="NOT_FINITE"), State.WARMING, Stage.WARM_UP),
    ],
)
def test_a_failure_has_a_stage(error: HalogenError, state: State, stage: Stage) -> None:
    """By what it is, else by how far the load was; reason and sentence are the error's own."""
    assert Failure(stage=stage, reason=error.reason, message=error.message) == failure_of(error, state)


def test_a_fault_of_ours_tells_no_details() -> None:
    """They may hold paths; the engine's log has them."""
    told = failure_of(RuntimeError("/secret/place"), State.WARMING)
    assert (Stage.WARM_UP, "INTERNAL") == (told.stage, told.reason)
    assert "/secret" not in told.message


@pytest.mark.parametrize(
    ("error", "tries", "is_served", "has_drained", "expected"),
    [
        (NotFound("not there yet"), 1, False, False, True),
        (Unavailable("starting"), CANDIDATE_TRIES, False, False, False),
        (Unavailable("starting"), CANDIDATE_TRIES, False, True, False),
        (Unavailable("starting"), CANDIDATE_TRIES, True, False, True),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), 1, False, False, False),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), 1, False, True, True),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), CANDIDATE_TRIES, False, True, False),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), 1, True, False, True),
        (CorruptData("torn"), 1, True, True, False),
        (RuntimeError("ours"), 1, True, False, False),
    ],
)
def test_only_what_may_pass_is_tried_again(
    error: Exception, tries: int, is_served: bool, has_drained: bool, expected: bool
) -> None:
    """Without end where gateways route to it; where others have just gone for it, memory may come free yet."""
    assert expected is may_pass(error, tries=tries, is_served=is_served, has_drained=has_drained)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CorruptData("torn"), True),
        (PreconditionFailed("topology", reason="GRAPH_MISMATCH"), True),
        (Unsupported("fp16 in bfloat16", reason="DTYPE_UNSUPPORTED"), True),
        (CorruptData("another file", reason="IDENTITY_MISMATCH"), False),
        (Overloaded("2 > 1", reason="MEMORY_GUARD"), False),
        (Unavailable("starting"), False),
        (RuntimeError("ours"), False),
    ],
)
def test_what_an_artifact_is_stays(error: Exception, expected: bool) -> None:
    """All else may be otherwise with the next try; a file that changed since is prepared again then."""
    assert expected is is_of_content(error)
