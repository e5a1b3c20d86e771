"""What a cohort shall serve, named by compare-and-set: target, revision and audit in one transaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from services.common.checkpoint import canonical
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import TrustedKeys
from services.common.errors import Conflict, NotFound, PreconditionFailed
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import (
    ArtifactRecord,
    ArtifactState,
    AuditRecord,
    LastRevision,
    Serving,
    Target,
)
from services.common.registry.store import Ambiguous, Delete, Entry, Put, Store, Unchanged
from services.common.telemetry.attributes import ARTIFACT_ID, COHORT, MODEL, REVISION
from services.common.telemetry.tracing import annotate, trace_parent
from services.gateway.operator_words import check_words, checked_model_name
from services.gateway.publication_audit import export, outlived

log = structlog.get_logger()

_TRIES: Final = 16


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


class _Part(NamedTuple):
    """A part of a transaction."""

    conditions: tuple[Unchanged, ...]
    writes: tuple[Put | Delete, ...]

    def joined(self, other: _Part) -> _Part:
        return _Part(self.conditions + other.conditions, self.writes + other.writes)


class _Seen(NamedTuple):
    """What stood when a publish was planned.

    Attributes:
        outlived: Audit records that are to go with it.
    """

    last: Entry | None
    target: Entry | None
    outlived: tuple[Entry, ...]

    @property
    def artifact_id(self) -> ArtifactId | None:
        return Target.decode(self.target.value).artifact_id if self.target else None

    @property
    def revision(self) -> Revision:
        return LastRevision.decode(self.last.value).revision if self.last else Revision(0)


class Publications:
    """Publishes and unpublishes; calls no engine.

    Args:
        store: The registry.
        known: The highest revision of a model that anybody knows of, should the registry have lost its own.
        check_plan: Raises PreconditionFailed when no engine could serve what an artifact requires.
        trust: Whose artifacts are taken.
    """

    def __init__(
        self,
        store: Store,
        known: Callable[[ModelName], Revision],
        check_plan: Callable[[Requirements], None],
        trust: TrustedKeys,
    ) -> None:
        self._store = store
        self._known = known
        self._check_plan = check_plan
        self._trust = trust

    async def publish(self, order: PublishOrder) -> Revision:
        """Names the artifact that a cohort shall serve, or none, under the model's next revision.

        What is unpublished is withdrawn from gateways in the same transaction; engines drain it and let it go.

        Raises:
            InvalidRequest: The model's name, who or why is not valid.
            NotFound: The artifact is not registered for this model, or there is nothing to unpublish.
            PreconditionFailed: The artifact is not READY, nobody trusted has signed it, or no engine that is there
                could serve it.
            Conflict: The model's revision is not the expected one, or other publishes keep winning.
        """
        checked_model_name(order.model)
        check_words(order.who, order.why)
        for _ in range(_TRIES):
            revision = await self._try(order)
            if revision is not None:
                event = "unpublished" if order.artifact_id is None else "published"
                log.info(event, revision=revision, **order._asdict())
                annotate({**_named(order), REVISION: revision})
                return revision
        raise Conflict(f"other publishes of {order.model} keep coming first; try again", retry_after_s=1.0)

    async def _try(self, order: PublishOrder) -> Revision | None:
        """One compare-and-set; None when somebody else's write came between."""
        seen = _Seen(
            last=await self._store.get(keys.revision(order.model)),
            target=await self._store.get(keys.target(order.model, order.cohort)),
            outlived=outlived((await self._store.list(keys.audits(order.model))).entries),
        )
        revision = self._next(order, seen)
        audit = Put(keys.audit(order.model, revision), _audit(order, seen.artifact_id).encode())
        own = await self._own_part(order, revision, seen.artifact_id)
        applied = await self._commit(_common_part(order, revision, seen, audit).joined(own), audit)
        if not applied:
            return None
        export(seen.outlived)
        return revision

    def _next(self, order: PublishOrder, seen: _Seen) -> Revision:
        """The model's next revision; raises Conflict when the standing one is not the expected one."""
        standing = max(seen.revision, self._known(order.model))
        if order.expected_revision is not None and order.expected_revision != standing:
            raise Conflict(
                f"{order.model} is at revision {standing}, not {order.expected_revision}; look and publish again",
                reason="REVISION_CONFLICT",
                metadata={"expected": str(order.expected_revision), "actual": str(standing)},
            )
        return Revision(standing + 1)

    async def _commit(self, part: _Part, audit: Put) -> bool:
        try:
            return await self._store.commit(part.conditions, part.writes)
        except Ambiguous:  # the audit record, which nobody else writes alike, tells
            record = await self._store.get(audit.key)
            return record is not None and record.value == audit.value

    async def _own_part(
        self, order: PublishOrder, revision: Revision, old_artifact_id: ArtifactId | None
    ) -> _Part:
        """What publishing alone, or unpublishing alone, compares and writes."""
        if order.artifact_id is not None:
            return await self._ready(order.model, order.artifact_id)
        if old_artifact_id is None:
            raise NotFound(
                f"{order.model}@{order.cohort} is not published; see what is: halogen status",
                reason="MODEL_NOT_FOUND",
            )
        withdrawn = Serving(
            revision=revision, artifact_id=None
        )  # newer than whatever the scheduler writes now
        return _Part((), (Put(keys.serving(order.model, order.cohort), withdrawn.encode()),))

    async def _ready(self, model: ModelName, artifact_id: ArtifactId) -> _Part:
        """The condition that the artifact stays READY."""
        key = keys.artifact(model, artifact_id)
        entry = await self._store.get(key)
        if entry is None:
            raise NotFound(
                f"model {model} has no artifact {artifact_id!r}; register it first, "
                "for example with: halogen publish MODEL DIRECTORY",
                reason="ARTIFACT_UNKNOWN",
            )
        self._check(artifact_id, ArtifactRecord.decode(entry.value))
        return _Part((Unchanged(key, entry.mod_revision),), ())

    def _check(self, artifact_id: ArtifactId, record: ArtifactRecord) -> None:
        """Raises PreconditionFailed unless it is READY, and still wanted: keys and engines may be others by now."""
        if record.state is not ArtifactState.READY:
            raise PreconditionFailed(
                f"artifact {artifact_id[:12]} is {record.state}, not READY. {record.reason}".rstrip(),
                reason="ARTIFACT_NOT_READY",
                metadata={"state": record.state},
            )
        self._trust.check(artifact_id, record.signatures.encode("ascii"))
        self._check_plan(Manifest.decode(canonical.encode(record.manifest)).requires)


def _common_part(order: PublishOrder, revision: Revision, seen: _Seen, audit: Put) -> _Part:
    """What every publish compares and writes."""
    target = Target(
        revision=revision,
        artifact_id=order.artifact_id,
        who=order.who,
        why=order.why,
        trace_parent=trace_parent(),
    )
    revision_key, target_key = keys.revision(order.model), keys.target(order.model, order.cohort)
    return _Part(
        (
            Unchanged(revision_key, seen.last.mod_revision if seen.last else 0),
            Unchanged(target_key, seen.target.mod_revision if seen.target else 0),
        ),
        (
            Put(revision_key, LastRevision(revision=revision).encode()),
            Put(target_key, target.encode()),
            audit,
            *(Delete(entry.key) for entry in seen.outlived),
        ),
    )


def _named(order: PublishOrder) -> dict[str, str | int]:
    return {MODEL: order.model, COHORT: order.cohort, ARTIFACT_ID: order.artifact_id or ""}


def _audit(order: PublishOrder, old: ArtifactId | None) -> AuditRecord:
    return AuditRecord(
        time=dt.datetime.now(dt.UTC).isoformat(),
        who=order.who,
        why=order.why,
        cohort=order.cohort,
        old_artifact_id=old,
        new_artifact_id=order.artifact_id,
    )
