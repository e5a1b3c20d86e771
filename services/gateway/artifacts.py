"""Artifacts made known: PENDING, then READY or REJECTED on a loader's report, in one transaction with the audit."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

import structlog

from services.common.checkpoint.manifest import MAX_MANIFEST_BYTES, Manifest
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import UNTRUSTED, Signatures, TrustedKeys
from services.common.errors import CorruptData, HalogenError, InvalidRequest
from services.common.ids import ArtifactId, ModelName
from services.common.registry import keys
from services.common.registry.records import ArtifactAuditRecord, ArtifactRecord, ArtifactState
from services.common.registry.store import Ambiguous, Delete, Put, Store, Unchanged
from services.common.telemetry.attributes import ARTIFACT_ID, MODEL
from services.common.telemetry.tracing import annotate
from services.gateway.artifact_audit import outlived
from services.gateway.operator_words import check_words, checked_model_name

log = structlog.get_logger()


class ArtifactOrder(NamedTuple):
    """What a registration asks for.

    Attributes:
        manifest: The artifact's, canonical.
        signatures: The content of its file of signatures; empty where there is none.
        reverify: Whether a REJECTED artifact gets another try.
        verify_only: Whether nothing of it is to be kept in a loader's memory.
    """

    model: str
    manifest: bytes
    signatures: bytes
    reverify: bool
    who: str
    why: str
    verify_only: bool = False


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


class _Standing(NamedTuple):
    """A record and when it was written."""

    record: ArtifactRecord
    mod_revision: int


class Verify(Protocol):
    def __call__(self, artifact_id: ArtifactId, *, verify_only: bool) -> AsyncGenerator[Verified, None]: ...


class Artifacts:
    """Registers by compare-and-set.

    Args:
        store: The registry.
        verify: Has a loader read and check every byte of an artifact, and told so keep nothing of it in memory; raises
            CorruptData when one is wrong.
        check_plan: Raises PreconditionFailed when no engine could serve what an artifact requires.
        trust: Whose artifacts are taken.
    """

    def __init__(
        self, store: Store, verify: Verify, check_plan: Callable[[Requirements], None], trust: TrustedKeys
    ) -> None:
        self._store = store
        self._verify = verify
        self._check_plan = check_plan
        self._trust = trust

    def check(self, model: str, manifest: bytes) -> tuple[ModelName, Manifest]:
        """The model's name and the artifact, of what may be registered; writes and reads nothing.

        Raises:
            InvalidRequest: The model's name or the manifest is not valid.
            PreconditionFailed: No engine that is there could serve it.
        """
        named, decoded = checked_model_name(model), _decoded(manifest)
        self._check_plan(decoded.requires)
        return named, decoded

    async def register(self, order: ArtifactOrder) -> AsyncGenerator[ArtifactProgress, None]:
        """Makes an artifact known and has it verified; the last item is READY or REJECTED.

        Raises:
            InvalidRequest: The model's name, the manifest, the signatures, who or why is not valid.
            PreconditionFailed: No engine that is there could serve it; nothing is written or read.
            NotFound: The loader's store does not hold the artifact.
            Unavailable: No loader or no registry answers; the artifact stays PENDING.
        """
        check_words(order.who, order.why)
        check_signatures(order.signatures)
        model, manifest = self.check(order.model, order.manifest)
        annotate({MODEL: model, ARTIFACT_ID: manifest.id})
        standing = await self._standing(model, manifest, order)
        if standing.record.state is not ArtifactState.PENDING:
            await self._note_signatures(model, manifest.id, standing, order)
            yield ArtifactProgress(manifest.id, standing.record.state, standing.record.reason)
            return
        reason = ""
        try:
            self._trust.check(manifest.id, order.signatures)
            async with contextlib.aclosing(self._verify(manifest.id, verify_only=order.verify_only)) as steps:
                async for step in steps:
                    yield ArtifactProgress(manifest.id, ArtifactState.PENDING, "", *step)
        except HalogenError as fault:
            if not _is_verdict(fault):
                raise
            reason = fault.message
        yield await self._conclude(model, manifest.id, standing, order, reason)

    async def _standing(self, model: ModelName, manifest: Manifest, order: ArtifactOrder) -> _Standing:
        """The artifact's standing record, made PENDING where it is new or to be verified again."""
        key = keys.artifact(model, manifest.id)
        while True:
            entry = await self._store.get(key)
            standing = _Standing(ArtifactRecord.decode(entry.value), entry.mod_revision) if entry else None
            if standing and not _is_to_be_verified_again(standing.record, order):
                return standing
            fresh = ArtifactRecord(
                manifest=json.loads(manifest.encode()),
                state=ArtifactState.PENDING,
                signatures=order.signatures.decode("ascii"),
            )
            seen = entry.mod_revision if entry else 0
            with contextlib.suppress(Ambiguous):  # the next round reads what became of it
                await self._store.commit([Unchanged(key, seen)], [Put(key, fresh.encode())])
            order = order._replace(reverify=False)

    async def _note_signatures(
        self, model: ModelName, artifact_id: ArtifactId, standing: _Standing, order: ArtifactOrder
    ) -> None:
        """Keeps who has signed a READY artifact since; whoever is first has it."""
        signatures = order.signatures.decode("ascii")
        if standing.record.state is not ArtifactState.READY or signatures in ("", standing.record.signatures):
            return
        self._trust.check(artifact_id, order.signatures)
        key = keys.artifact(model, artifact_id)
        record = standing.record.model_copy(update={"signatures": signatures})
        await self._store.commit([Unchanged(key, standing.mod_revision)], [Put(key, record.encode())])

    async def _conclude(
        self,
        model: ModelName,
        artifact_id: ArtifactId,
        seen: _Standing,
        order: ArtifactOrder,
        reason: str,
    ) -> ArtifactProgress:
        """Sets the state once, with the audit record; when another gateway was first, tells what that one set."""
        key = keys.artifact(model, artifact_id)
        state = ArtifactState.REJECTED if reason else ArtifactState.READY
        record = seen.record.model_copy(
            update={"state": state, "reason": reason, "signatures": order.signatures.decode("ascii")}
        )
        audit_key = keys.artifact_audit(model, artifact_id, seen.mod_revision)
        audit = Put(audit_key, _audit(order, state, reason).encode())
        writes: list[Put | Delete] = [Put(key, record.encode()), audit, *await self._outlived_by(audit_key)]
        await self._store.commit([Unchanged(key, seen.mod_revision)], writes)
        entry = await self._store.get(key)
        final = ArtifactRecord.decode(entry.value) if entry else record
        log.info(
            "artifact_verified",
            model=model,
            artifact_id=artifact_id,
            state=final.state,
            reason=final.reason,
            who=order.who,
            why=order.why,
        )
        return ArtifactProgress(artifact_id, final.state, final.reason)

    async def _outlived_by(self, audit_key: str) -> list[Delete]:
        present = (await self._store.list(keys.ARTIFACT_AUDIT)).entries
        return [Delete(key) for key in outlived((entry.key for entry in present), audit_key)]


def _decoded(manifest: bytes) -> Manifest:
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise InvalidRequest(f"the manifest has {len(manifest)} bytes; at most {MAX_MANIFEST_BYTES}")
    try:
        return Manifest.decode(manifest)
    except CorruptData as fault:
        raise InvalidRequest(fault.message, reason="MANIFEST_INVALID") from None


def check_signatures(content: bytes) -> None:
    """Raises InvalidRequest where it is no file of signatures, or too long."""
    try:
        Signatures.decode(content)
    except ValueError as fault:
        raise InvalidRequest(
            f"the signatures cannot be read ({fault}); sign the artifact again: halogen sign DIR --key FILE",
            reason="SIGNATURES_INVALID",
        ) from None


def _is_to_be_verified_again(record: ArtifactRecord, order: ArtifactOrder) -> bool:
    return record.state is ArtifactState.REJECTED and order.reverify


def _is_verdict(fault: HalogenError) -> bool:
    """Whether it says that the artifact is bad, and not that somebody is away."""
    return isinstance(fault, CorruptData) or fault.reason == UNTRUSTED


def _audit(order: ArtifactOrder, state: ArtifactState, reason: str) -> ArtifactAuditRecord:
    return ArtifactAuditRecord(
        time=dt.datetime.now(dt.UTC).isoformat(), who=order.who, why=order.why, state=state, reason=reason
    )
