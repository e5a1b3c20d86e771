"""What operators do: make artifacts known, name the one that a cohort shall serve, or none."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

import structlog

from services.common.checkpoint.manifest import Manifest
from services.common.errors import Conflict, CorruptData, InvalidRequest, NotFound, PreconditionFailed
from services.common.ids import MODEL_NAME_PATTERN, ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import (
    ArtifactRecord,
    ArtifactState,
    AuditRecord,
    LastRevision,
    Serving,
    Target,
)
from services.common.registry.store import Ambiguous, Put, Store, Unchanged
from services.common.telemetry.attributes import ARTIFACT_ID, COHORT, MODEL, REVISION
from services.common.telemetry.tracing import annotate, trace_parent

log = structlog.get_logger()

MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_WORDS: Final = 1_000  # characters of who and of why
_PUBLISH_TRIES: Final = 16


class Verified(NamedTuple):
    """How far a loader has come with an artifact."""

    done_bytes: int
    total_bytes: int


class ArtifactProgress(NamedTuple):
    artifact_id: ArtifactId
    state: ArtifactState
    reason: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


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


Verify = Callable[[ArtifactId], AsyncGenerator[Verified, None]]


class Control:
    """Registers and publishes by compare-and-set on the registry; calls no engine.

    Args:
        store: The registry.
        verify: Has a loader read and check every byte of an artifact; raises CorruptData when one is wrong.
        known: The highest revision of a model that anybody knows of, should the registry have lost its own.
    """

    def __init__(
        self, store: Store, verify: Verify, known: Callable[[ModelName], Revision] = lambda _: Revision(0)
    ) -> None:
        self._store = store
        self._verify = verify
        self._known = known

    async def register(
        self, model: str, manifest_bytes: bytes, *, reverify: bool
    ) -> AsyncGenerator[ArtifactProgress, None]:
        """Makes an artifact known and has it verified; the last item is READY or REJECTED.

        Raises:
            InvalidRequest: The model's name or the manifest is not valid.
            NotFound: The loader's store does not hold the artifact.
            Unavailable: No loader or no registry answers; the artifact stays PENDING.
        """
        name = checked_model_name(model)
        if len(manifest_bytes) > MAX_MANIFEST_BYTES:
            raise InvalidRequest(
                f"the manifest has {len(manifest_bytes)} bytes; at most {MAX_MANIFEST_BYTES}"
            )
        try:
            manifest = Manifest.decode(manifest_bytes)
        except CorruptData as fault:
            raise InvalidRequest(fault.message, reason="MANIFEST_INVALID") from None
        annotate({MODEL: name, ARTIFACT_ID: manifest.id})
        pending = await self._pending(name, manifest, reverify=reverify)
        if pending.record.state is not ArtifactState.PENDING:
            yield ArtifactProgress(manifest.id, pending.record.state, pending.record.reason)
            return
        state, reason = ArtifactState.READY, ""
        try:
            async with contextlib.aclosing(self._verify(manifest.id)) as steps:
                async for step in steps:
                    yield ArtifactProgress(manifest.id, ArtifactState.PENDING, "", *step)
        except CorruptData as fault:
            state, reason = ArtifactState.REJECTED, fault.message
        yield await self._conclude(name, manifest.id, pending, state, reason)

    async def _pending(self, model: ModelName, manifest: Manifest, *, reverify: bool) -> _Standing:
        """The artifact's standing record, made PENDING where it is new or to be verified again."""
        key = keys.artifact(model, manifest.id)
        while True:
            entry = await self._store.get(key)
            if entry is not None:
                record = ArtifactRecord.decode(entry.value)
                if record.state is not ArtifactState.REJECTED or not reverify:
                    return _Standing(record, entry.mod_revision)
            fresh = ArtifactRecord(manifest=json.loads(manifest.encode()), state=ArtifactState.PENDING)
            seen = entry.mod_revision if entry else 0
            with contextlib.suppress(Ambiguous):  # the next round reads what became of it
                await self._store.commit([Unchanged(key, seen)], [Put(key, fresh.encode())])
            reverify = False

    async def _conclude(
        self, model: ModelName, artifact_id: ArtifactId, seen: _Standing, state: ArtifactState, reason: str
    ) -> ArtifactProgress:
        """Sets the state once; when another gateway was first, tells what that one set."""
        key = keys.artifact(model, artifact_id)
        record = seen.record.model_copy(update={"state": state, "reason": reason})
        await self._store.commit([Unchanged(key, seen.mod_revision)], [Put(key, record.encode())])
        entry = await self._store.get(key)
        final = ArtifactRecord.decode(entry.value) if entry else record
        log.info(
            "artifact_verified", model=model, artifact_id=artifact_id, state=final.state, reason=final.reason
        )
        return ArtifactProgress(artifact_id, final.state, final.reason)

    async def publish(self, order: PublishOrder) -> Revision:
        """Names the artifact that a cohort shall serve, or none, under the model's next revision.

        What is unpublished is withdrawn from gateways in the same transaction; engines drain it and let it go.

        Raises:
            InvalidRequest: The model's name, who or why is not valid.
            NotFound: The artifact is not registered for this model, or there is nothing to unpublish.
            PreconditionFailed: The artifact is not READY.
            Conflict: The model's revision is not the expected one, or other publishes keep winning.
        """
        checked_model_name(order.model)
        for field in ("who", "why"):
            words = getattr(order, field)
            if not words.strip() or len(words) > MAX_WORDS:
                raise InvalidRequest(f"{field} must say something, in at most {MAX_WORDS} characters")
        for _ in range(_PUBLISH_TRIES):
            revision = await self._try_publish(order)
            if revision is not None:
                event = "unpublished" if order.artifact_id is None else "published"
                log.info(event, revision=revision, **order._asdict())
                annotate({**_named(order), REVISION: revision})
                return revision
        raise Conflict(f"other publishes of {order.model} keep coming first; try again", retry_after_s=1.0)

    async def _try_publish(self, order: PublishOrder) -> Revision | None:
        """One compare-and-set; None when somebody else's write came between."""
        last = await self._store.get(keys.revision(order.model))
        standing = max(
            LastRevision.decode(last.value).revision if last else Revision(0), self._known(order.model)
        )
        if order.expected_revision is not None and order.expected_revision != standing:
            raise Conflict(
                f"{order.model} is at revision {standing}, not {order.expected_revision}; look and publish again",
                reason="REVISION_CONFLICT",
                metadata={"expected": str(order.expected_revision), "actual": str(standing)},
            )
        revision = Revision(standing + 1)
        target_key = keys.target(order.model, order.cohort)
        old = await self._store.get(target_key)
        old_artifact_id = Target.decode(old.value).artifact_id if old else None
        target = Target(
            revision=revision,
            artifact_id=order.artifact_id,
            who=order.who,
            why=order.why,
            trace_parent=trace_parent(),
        )
        part = await self._own_part(order, revision, old_artifact_id)
        conditions = [
            Unchanged(keys.revision(order.model), last.mod_revision if last else 0),
            Unchanged(target_key, old.mod_revision if old else 0),
            *part.conditions,
        ]
        audit = _audit(order, old_artifact_id)
        writes = [
            Put(keys.revision(order.model), LastRevision(revision=revision).encode()),
            Put(target_key, target.encode()),
            Put(keys.audit(order.model, revision), audit.encode()),
            *part.writes,
        ]
        try:
            applied = await self._store.commit(conditions, writes)
        except Ambiguous:
            record = await self._store.get(keys.audit(order.model, revision))
            applied = record is not None and record.value == audit.encode()
        return revision if applied else None

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
        record = ArtifactRecord.decode(entry.value)
        if record.state is not ArtifactState.READY:
            raise PreconditionFailed(
                f"artifact {artifact_id[:12]} is {record.state}, not READY. {record.reason}".rstrip(),
                reason="ARTIFACT_NOT_READY",
                metadata={"state": record.state},
            )
        return _Part((Unchanged(key, entry.mod_revision),), ())


class _Part(NamedTuple):
    """A part of a transaction."""

    conditions: tuple[Unchanged, ...]
    writes: tuple[Put, ...]


class _Standing(NamedTuple):
    record: ArtifactRecord
    mod_revision: int


def checked_model_name(name: str) -> ModelName:
    """Raises InvalidRequest unless `name` can name a model."""
    if not MODEL_NAME_PATTERN.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a model: use lower-case letters, digits, '.', '_' and '-', at most 64",
            reason="MODEL_NAME_INVALID",
        )
    return ModelName(name)


def checked_cohort(name: str) -> Cohort:
    """The cohort of that name, stable when empty; raises InvalidRequest for any other."""
    try:
        return Cohort(name or Cohort.STABLE)
    except ValueError:
        raise InvalidRequest(f"there is no cohort {name[:80]!r}: use stable or canary") from None


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
