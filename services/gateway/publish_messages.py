"""How publishes stand, on the wire."""

from __future__ import annotations

from typing import Final

from halogen.v1 import control_pb2 as pb
from services.common.errors import InvalidRequest
from services.common.registry.publish_records import (
    CommitRecord,
    Failure,
    PublishState,
    Strategy,
    SwapMode,
    SyncStatus,
)
from services.gateway.history import Outcome, Published
from services.gateway.operator_words import checked_strategy
from services.gateway.pushes import Pushed

PUBLISH_STATES = {
    PublishState.PENDING: pb.PUBLISH_STATE_PENDING,
    PublishState.APPLIED: pb.PUBLISH_STATE_APPLIED,
    PublishState.SUPERSEDED: pb.PUBLISH_STATE_SUPERSEDED,
    PublishState.FAILED: pb.PUBLISH_STATE_FAILED,
}

_SYNC_STATUSES = {
    None: pb.REGISTRY_SYNC_STATUS_UNSPECIFIED,
    SyncStatus.PENDING: pb.REGISTRY_SYNC_STATUS_PENDING,
    SyncStatus.SYNCED: pb.REGISTRY_SYNC_STATUS_SYNCED,
    SyncStatus.FAILED: pb.REGISTRY_SYNC_STATUS_FAILED,
}


_MODES: Final = {
    pb.SWAP_MODE_ATOMIC_SWAP: SwapMode.ATOMIC_SWAP,
    pb.SWAP_MODE_DRAIN_THEN_LOAD: SwapMode.DRAIN_THEN_LOAD,
}


def strategy_of(told: pb.Strategy) -> Strategy:
    """What a request says; raises InvalidRequest for what is out of bounds or unknown."""
    said = {field.name: value for field, value in told.ListFields()}
    if told.mode:
        said["mode"] = _MODES.get(told.mode)
        if said["mode"] is None:
            raise InvalidRequest(
                f"this gateway knows no swap mode {told.mode}; use another, or a newer gateway"
            )
    return checked_strategy(Strategy(**said))


def failure_message(failure: Failure) -> pb.Failure:
    return pb.Failure(stage=f"STAGE_{failure.stage}", reason=failure.reason, message=failure.message)


def outcome_message(outcome: Outcome) -> pb.PublishOutcome:
    record = outcome.record
    return pb.PublishOutcome(
        revision=outcome.revision,
        state=PUBLISH_STATES[record.state],
        failure=failure_message(record.failure) if record.failure else None,
        superseded_by=record.superseded_by or 0,
        waiting_for=outcome.waiting_for,
    )


def sync_status(commit: CommitRecord | None) -> pb.RegistrySyncStatus:
    """How a commit stands in the registry of models; unspecified, too, where nothing was committed."""
    return _SYNC_STATUSES[commit.registry_sync_status if commit else None]


def pushed_message(pushed: Pushed) -> pb.PushCommitResponse:
    record = pushed.record
    return pb.PushCommitResponse(
        revision=pushed.revision,
        registry_sync_status=sync_status(record),
        failure=failure_message(record.registry_failure) if record.registry_failure else None,
    )


def entry_message(published: Published) -> pb.HistoryEntry:
    record = published.record
    entry = pb.HistoryEntry(
        revision=published.revision,
        cohort=record.cohort,
        artifact_id=record.artifact_id or "",
        old_artifact_id=record.old_artifact_id or "",
        who=record.who,
        why=record.why,
        outcome=outcome_message(Outcome(published.revision, record)),
        registry_sync_status=sync_status(published.commit),
    )
    entry.time.FromJsonString(record.time)
    if record.end_time:
        entry.end_time.FromJsonString(record.end_time)
    return entry
