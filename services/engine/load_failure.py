"""What it means that a load failed: at which stage, and whether another try may help. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.common.checkpoint.requirements import UNMET
from services.common.errors import (
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
    Unsupported,
)
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationState as State

# about a minute, as `Backoff` has it: longer than a loader takes to start again, or keeps weights for certain
CANDIDATE_TRIES: Final = 40

WAITING_FOR_DRAIN: Final = (
    "waiting_for_drain: two generations of its model are here, and one has yet to finish"
)
WAITING_FOR_ALL: Final = "waiting_for_drain: it is loaded once what serves here has finished and gone"

_PASSING: Final = (Unavailable, Overloaded, NotFound)  # an artifact may reach the store after its target
_OF_CONTENT: Final = (CorruptData, InvalidRequest, PreconditionFailed, Unsupported)
_CHANGED_SINCE: Final = "IDENTITY_MISMATCH"  # the loader has to prepare it again
_NO_MEMORY: Final = frozenset({"MEMORY_GUARD", "NO_ROOM_FOR_WEIGHTS"})
_BY_REASON: Final[Mapping[str, Stage]] = {
    **dict.fromkeys(_NO_MEMORY, Stage.GUARD),
    "GRAPH_MISMATCH": Stage.GRAPH,
    UNMET: Stage.GRAPH,  # it is none that this engine can build
    _CHANGED_SINCE: Stage.DIGEST,
}
_BY_STATE: Final[Mapping[State, Stage]] = {
    State.FETCHING: Stage.FETCH,
    State.VERIFYING: Stage.GRAPH,
    State.ALLOCATING: Stage.ALLOCATION,
    State.WARMING: Stage.WARM_UP,
}


def drain_over() -> PreconditionFailed:
    """What streams on old weights end with once their drain has lasted too long; before the first token another route is taken."""
    return PreconditionFailed(
        "the weights that this answer is computed with have been replaced, and the time that was left for it "
        "(--checkpoint.max-drain-s) is over; ask again",
        reason="REVISION_RETIRED",
    )


def failure_of(error: Exception, state: State) -> Failure:
    """What others are told of a load that failed in `state`; of a fault of ours, that it was one."""
    if not isinstance(error, HalogenError):
        message = "it could not be loaded; the engine's log has the details"
        return Failure(stage=_BY_STATE[state], reason="INTERNAL", message=message)
    return Failure(stage=_stage(error, state), reason=error.reason, message=error.message)


def timeout_of(state: State, timeout_s: float, waiting_for: str, fault: Failure | None) -> Failure:
    """Of a load that was still in `state`, and said that it waits, when its time was over.

    Of one that is only tried again, as it has failed by a `fault` that might have passed, it is the fault that matters.
    """
    if fault:
        message = f"{fault.message}; it was tried again until its time, {timeout_s:g} s, was over"
        return fault.model_copy(update={"message": message})
    what = f": {waiting_for}" if waiting_for else ""
    message = (
        f"it was {state} and not yet ACTIVE {timeout_s:g} s after it could allocate{what}; publish it again, with a "
        "longer --timeout-ms, or give engines a longer --checkpoint.timeout-ms"
    )
    return Failure(stage=_BY_STATE[state], reason="TIMEOUT", message=message)


def may_pass(error: Exception, *, tries: int, is_served: bool, has_drained: bool) -> bool:
    """Whether to try again after so many tries.

    What gateways route to is tried for ever. A candidate, beside which something else serves, ends: at once where
    memory is short, for nothing here gives any back while it waits; but not one for which others have just gone, whose
    files the loader is yet to let go (`--keep-s` after they were last asked for): it has as many tries as any other.
    """
    if not isinstance(error, _PASSING):
        return False
    if error.reason in _NO_MEMORY and not has_drained:
        return is_served
    return is_served or tries < CANDIDATE_TRIES


def is_of_content(error: Exception) -> bool:
    """Whether it comes of what the artifact is, or of what this engine is, and so comes again with every try."""
    if isinstance(error, HalogenError) and error.reason == _CHANGED_SINCE:
        return False
    return isinstance(error, _OF_CONTENT)


def _stage(error: HalogenError, state: State) -> Stage:
    if state is State.FETCHING and isinstance(error, CorruptData):
        return Stage.DIGEST
    return _BY_REASON.get(error.reason, _BY_STATE[state])
