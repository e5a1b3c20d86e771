"""What a publish writes, and what must not have changed meanwhile: the decision, without the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.common.errors import Conflict, NotFound
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord, PublishState, Strategy
from services.common.registry.records import AuditRecord, LastRevision, Served, Serving, Target
from services.common.registry.store import Delete, Entry, Head, Put, Unchanged
from services.gateway.publication_audit import outlived, outlived_intents


class PublishOrder(NamedTuple):
    """What a publish asks for.

    Attributes:
        artifact_id: None unpublishes: the cohort shall serve nothing.
        expected_revision: None takes whatever stands.
    """

    model: ModelName
    cohort: Cohort
    artifact_id: ArtifactId | None
    expected_revision: Revision | None
    who: str
    why: str
    strategy: Strategy = Strategy()


class Seen(NamedTuple):
    """What stood when a publish was planned, read in this order.

    Attributes:
        last: revisions/ of the model.
        target: targets/ of the cohort.
        serving: serving/ of the cohort.
        audits: The oldest of the model.
        intents: All of the model where some are to go, else none.
        intent: Of the target's revision.
    """

    last: Entry | None
    target: Entry | None
    serving: Entry | None
    audits: Head
    intents: tuple[Entry, ...]
    intent: Entry | None

    @property
    def named(self) -> Target | None:
        return target_of(self.target)

    @property
    def artifact_id(self) -> ArtifactId | None:
        return self.named.artifact_id if self.named else None

    def is_behind(self, revision: Revision) -> bool:
        """Whether that revision, which was to be the next, was given to somebody else in the middle of reading."""
        return self.named is not None and self.named.revision >= revision

    @property
    def served(self) -> Served | None:
        """None, too, where the value is no such record."""
        try:
            serving = Serving.decode(self.serving.value) if self.serving else None
        except ValueError:
            return None
        return Served(revision=serving.revision, artifact_id=serving.artifact_id) if serving else None


def target_of(entry: Entry | None) -> Target | None:
    return Target.decode(entry.value) if entry else None


class Transaction(NamedTuple):
    """What a publish compares and writes, all or nothing.

    Attributes:
        audit: The one of the writes that nobody else writes alike.
        audits: Records that are gone with it.
        intents: The same.
    """

    revision: Revision
    conditions: tuple[Unchanged, ...]
    writes: tuple[Put | Delete, ...]
    audit: Put
    audits: tuple[Entry, ...]
    intents: tuple[Entry, ...]


class Pending(NamedTuple):
    """The intent of the cohort's standing target, while nobody has ended it."""

    entry: Entry
    record: IntentRecord


def next_revision(order: PublishOrder, seen: Seen, known: Revision) -> Revision:
    """The model's next one.

    Args:
        order: The publish.
        seen: What stands.
        known: The highest that anybody knows of, should the registry have lost its own.

    Raises:
        Conflict: The standing one is not the expected one.
    """
    given = LastRevision.decode(seen.last.value).revision if seen.last else Revision(0)
    standing = max(given, known)
    if order.expected_revision is not None and order.expected_revision != standing:
        raise Conflict(
            f"{order.model} is at revision {standing}, not {order.expected_revision}; nothing was changed: look (halogen history "
            f"{order.model}), and ask again if that is still wanted",
            reason="REVISION_CONFLICT",
            metadata={"expected": str(order.expected_revision), "actual": str(standing)},
        )
    return Revision(standing + 1)


def plan(
    order: PublishOrder,
    seen: Seen,
    artifact: Entry | None,
    *,
    revision: Revision,
    time: str,
    trace_parent: str,
) -> Transaction:
    """One transaction for target, revision, intent and audit; it also ends the publish that it comes before.

    Args:
        order: The publish.
        seen: What stands.
        artifact: What must stay READY; None for an unpublish.
        revision: What `next_revision` says.
        time: RFC 3339, UTC.
        trace_parent: The publish's, W3C trace context.

    Raises:
        NotFound: There is nothing to unpublish.
    """
    if order.artifact_id is None and seen.artifact_id is None:
        raise NotFound(
            f"{order.model}@{order.cohort} is not published; see what is: halogen status",
            reason="MODEL_NOT_FOUND",
        )
    before = _pending(seen)
    audit = Put(keys.audit(order.model, revision), _audit(order, seen.artifact_id, time).encode())
    intents = outlived_intents(seen.intents)
    named: tuple[Put, ...] = (
        Put(keys.revision(order.model), LastRevision(revision=revision).encode()),
        Put(keys.target(order.model, order.cohort), _target(order, seen, revision, trace_parent).encode()),
        Put(keys.intent(order.model, revision), _intent(order, seen.artifact_id, time).encode()),
        audit,
        *_withdrawal(order, revision),
        *_superseding(before, revision, time),
    )
    audits = outlived(seen.audits)
    writes: tuple[Put | Delete, ...] = (*named, *_dropping(audits, intents))
    return Transaction(revision, _conditions(order, seen, before, artifact), writes, audit, audits, intents)


def _dropping(audits: Iterable[Entry], intents: Iterable[Entry]) -> tuple[Delete, ...]:
    """Commits go with their intents."""
    commits = (keys.commit(*keys.split_revision_key(entry.key)) for entry in intents)
    return (*(Delete(entry.key) for entry in (*audits, *intents)), *map(Delete, commits))


def _conditions(
    order: PublishOrder, seen: Seen, before: Pending | None, artifact: Entry | None
) -> tuple[Unchanged, ...]:
    must_stay = [each for each in (before and before.entry, artifact) if each]
    return (
        _unchanged(keys.revision(order.model), seen.last),
        _unchanged(keys.target(order.model, order.cohort), seen.target),
        _unchanged(keys.serving(order.model, order.cohort), seen.serving),
        *(Unchanged(entry.key, entry.mod_revision) for entry in must_stay),
    )


def _unchanged(key: str, entry: Entry | None) -> Unchanged:
    return Unchanged(key, entry.mod_revision if entry else 0)


def _pending(seen: Seen) -> Pending | None:
    """None, too, where the value is no such record: it holds nobody up."""
    try:
        record = IntentRecord.decode(seen.intent.value) if seen.intent else None
    except ValueError:
        return None
    if seen.intent and record and record.state is PublishState.PENDING:
        return Pending(seen.intent, record)
    return None


def _superseding(before: Pending | None, revision: Revision, time: str) -> tuple[Put, ...]:
    if before is None:
        return ()
    ended = before.record.ended(PublishState.SUPERSEDED, time, superseded_by=revision)
    return (Put(before.entry.key, ended.encode()),)


def _withdrawal(order: PublishOrder, revision: Revision) -> tuple[Put, ...]:
    """Newer than whatever the scheduler writes now."""
    if order.artifact_id is not None:
        return ()
    withdrawn = Serving(revision=revision, artifact_id=None)
    return (Put(keys.serving(order.model, order.cohort), withdrawn.encode()),)


def _target(order: PublishOrder, seen: Seen, revision: Revision, trace_parent: str) -> Target:
    return Target(
        revision=revision,
        artifact_id=order.artifact_id,
        who=order.who,
        why=order.why,
        strategy=order.strategy,
        trace_parent=trace_parent,
        served=seen.served,
    )


def _intent(order: PublishOrder, old: ArtifactId | None, time: str) -> IntentRecord:
    """PENDING; an unpublish is applied as it is said."""
    intent = IntentRecord(
        time=time,
        who=order.who,
        why=order.why,
        cohort=order.cohort,
        artifact_id=order.artifact_id,
        old_artifact_id=old,
        strategy=order.strategy,
    )
    return intent if order.artifact_id is not None else intent.ended(PublishState.APPLIED, time)


def _audit(order: PublishOrder, old: ArtifactId | None, time: str) -> AuditRecord:
    return AuditRecord(
        time=time,
        who=order.who,
        why=order.why,
        cohort=order.cohort,
        old_artifact_id=old,
        new_artifact_id=order.artifact_id,
    )
