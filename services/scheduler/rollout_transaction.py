"""What the end of a publish writes, and what must not have changed meanwhile: the decision, without the registry."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.publish_progress import state_of
from services.common.registry.publish_records import CommitRecord, IntentRecord, PublishState, SyncStatus
from services.common.registry.record import Record
from services.common.registry.records import Serving, Target
from services.common.registry.store import Entry, Put, Unchanged
from services.scheduler.rollout import Commit, Fail, Step

R = TypeVar("R", bound=Record)


class Concerned(NamedTuple):
    """The keys that the end of a publish compares."""

    target: str
    serving: str
    intent: str

    @classmethod
    def by(cls, step: Step) -> Concerned:
        model, cohort = keys.split_cohort_key(step.key)
        return cls(step.key, keys.serving(model, cohort), keys.intent(model, step.target.revision))


class Standing(NamedTuple):
    """What stands at these keys."""

    target: Entry | None
    serving: Entry | None
    intent: Entry | None


class Transaction(NamedTuple):
    """What is compared and written, all or nothing.

    Attributes:
        old_artifact_id: What was served until then.
        proof: The one of the writes that nobody else writes alike.
    """

    conditions: tuple[Unchanged, ...]
    writes: tuple[Put, ...]
    old_artifact_id: ArtifactId | None
    proof: Put


def transaction(
    step: Step, standing: Standing, time: str, sync_status: SyncStatus | None = None
) -> Transaction | None:
    """The one transaction that ends a publish; None when it has ended already, or another has come before it.

    Args:
        step: What is to be written, by views that may lag behind.
        standing: What the registry has now.
        time: RFC 3339, UTC.
        sync_status: How a commit stands in the registry of models from its beginning.
    """
    target, served = _decoded(Target, standing.target), _decoded(Serving, standing.serving)
    if target is None or target.revision != step.target.revision:
        return None
    if state_of(target, served) is not PublishState.PENDING:
        return None
    concerned = Concerned.by(step)
    conditions = tuple(
        Unchanged(key, entry.mod_revision if entry else 0)
        for key, entry in zip(concerned, standing, strict=True)
    )
    writes = _commit(step, concerned, time, sync_status) if isinstance(step, Commit) else _fail(step, target)
    intent = _decoded(IntentRecord, standing.intent)
    if intent is not None and intent.state is PublishState.PENDING:
        writes = (*writes, Put(concerned.intent, _ended(intent, step, time).encode()))
    return Transaction(conditions, writes, served.artifact_id if served else None, writes[-1])


def _commit(step: Commit, concerned: Concerned, time: str, sync_status: SyncStatus | None) -> tuple[Put, ...]:
    model, cohort = keys.split_cohort_key(step.key)
    artifact_id, revision = step.target.artifact_id, step.target.revision
    assert artifact_id is not None  # or it would not be PENDING
    serving = Serving(revision=revision, artifact_id=artifact_id, ready=step.ready)
    commit = CommitRecord(
        time=time,
        cohort=cohort,
        artifact_id=artifact_id,
        ready=step.ready,
        waiting_for=step.waiting_for,
        registry_sync_status=sync_status,
    )
    return (
        Put(concerned.serving, serving.encode()),
        Put(keys.commit(model, revision), commit.encode()),
    )


def _fail(step: Fail, target: Target) -> tuple[Put, ...]:
    return (Put(step.key, target.model_copy(update={"failure": step.failure}).encode()),)


def _ended(intent: IntentRecord, step: Step, time: str) -> IntentRecord:
    if isinstance(step, Commit):
        return intent.ended(PublishState.APPLIED, time)
    return intent.ended(PublishState.FAILED, time, failure=step.failure)


def _decoded(kind: type[R], entry: Entry | None) -> R | None:
    """None where the value is no such record: a sound one may replace it."""
    try:
        return kind.decode(entry.value) if entry else None
    except ValueError:
        return None
