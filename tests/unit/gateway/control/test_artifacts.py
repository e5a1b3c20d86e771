"""Registering: verified, judged once, audited, and refused before anything is read when nobody could serve it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from halogen.v1 import control_pb2 as pb
from services.common.errors import (
    CorruptData,
    HalogenError,
    InvalidRequest,
    PreconditionFailed,
    Unavailable,
)
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import (
    ArtifactAuditRecord,
    ArtifactState,
    EngineRecord,
)
from services.common.registry.store import Delete, Put, Unchanged
from services.gateway.control import Control
from services.gateway.control_servicer import ControlServicer
from services.gateway.engine_offers import EngineOffers
from tests.signing import signed_by, trusting
from tests.unit.gateway.control.builders import (
    CPU,
    MODEL,
    CutStore,
    Loader,
    artifact_order,
    engine,
    for_sm_90,
    manifest,
    order,
    registered,
)


async def test_a_verified_artifact_is_ready(control: Control, store: MemoryStore) -> None:
    """PENDING while the loader reads, READY at the end, and no target has moved."""
    steps = await registered(control, manifest("a"))
    pending, ready = ArtifactState.PENDING, ArtifactState.READY
    assert [(pending, 1, 2), (pending, 2, 2), (ready, 0, 0)] == [
        (step.state, step.done_bytes, step.total_bytes) for step in steps
    ]
    assert () == (await store.list(keys.TARGETS)).entries


async def test_a_bad_artifact_is_rejected_with_its_block(control: Control, loader: Loader) -> None:
    """The loader's finding is the record's reason, and it stays."""
    loader.failure = CorruptData("model.halogen: block 3 does not match its digest")
    last = (await registered(control, manifest("a")))[-1]
    again = await registered(control, manifest("a"))
    assert [(ArtifactState.REJECTED, "model.halogen: block 3 does not match its digest")] * 2 == [
        (last.state, last.reason),
        (again[-1].state, again[-1].reason),
    ]
    assert (1, 1) == (len(again), len(loader.asked))


async def test_a_rejected_artifact_can_be_verified_again(control: Control, loader: Loader) -> None:
    """After its files were mended, when asked for."""
    loader.failure = CorruptData("bad")
    await registered(control, manifest("a"))
    loader.failure = None
    assert ArtifactState.READY == (await registered(control, manifest("a"), reverify=True))[-1].state


async def test_an_absent_loader_leaves_the_artifact_pending(control: Control, loader: Loader) -> None:
    """Nobody's fault but the hour's: the same call later goes on."""
    loader.failure = Unavailable("no loader")
    with pytest.raises(Unavailable):
        await registered(control, manifest("a"))
    loader.failure = None
    assert ArtifactState.READY == (await registered(control, manifest("a")))[-1].state


@pytest.mark.parametrize("model", ["", "A", "a/b", "-a", "a" * 65, "ä"])
async def test_a_model_name_that_is_none_is_refused(control: Control, model: str) -> None:
    """Names are keys and labels: plain ones only."""
    with pytest.raises(InvalidRequest, match="cannot name a model"):
        await anext(control.artifacts.register(artifact_order(manifest("a").encode(), model=model)))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\xff", b"{" * 2_000_000], ids=["empty", "bare", "bytes", "huge"]
)
async def test_a_manifest_that_is_none_is_refused(control: Control, text: bytes) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidRequest):
        await anext(control.artifacts.register(artifact_order(text)))


async def test_to_check_an_artifact_writes_and_reads_nothing(store: CutStore, loader: Loader) -> None:
    """Whoever is to copy files asks first. Turns red when: Artifacts.check does not ask check_plan."""
    control = Control.on(store, loader.verify, check_plan=EngineOffers({"engines/a": engine()}).check)
    control.artifacts.check("m", manifest("a").encode())
    with pytest.raises(PreconditionFailed, match="sm_90 is required, cpu is here"):
        control.artifacts.check("m", for_sm_90().encode())
    assert ([], ()) == (loader.asked, (await store.list("")).entries)


# Turns red when: Artifacts.register verifies before it asks whether any engine could serve the artifact.
async def test_r_g5_what_no_engine_can_serve_is_not_even_verified(store: CutStore, loader: Loader) -> None:
    """Refused at the plan: nothing is downloaded, nothing is written."""
    control = Control.on(store, loader.verify, check_plan=EngineOffers({"engines/a": engine()}).check)
    with pytest.raises(PreconditionFailed, match="sm_90 is required, cpu is here"):
        await registered(control, for_sm_90())
    assert ([], ()) == (loader.asked, (await store.list("")).entries)


async def test_r_g5_what_no_engine_can_serve_any_more_is_not_published(
    store: CutStore, loader: Loader
) -> None:
    """READY while engines were others. Turns red when: Publications._check does not ask check_plan."""
    engines = {"engines/a": engine(CPU.model_copy(update={"device_class": "sm_90"}))}
    control = Control.on(store, loader.verify, check_plan=EngineOffers(engines).check)
    assert ArtifactState.READY == (await registered(control, for_sm_90()))[-1].state
    engines["engines/a"] = engine()
    with pytest.raises(PreconditionFailed, match="sm_90 is required, cpu is here"):
        await control.publications.publish(order(for_sm_90().id))
    assert () == (await store.list(keys.TARGETS)).entries


@pytest.mark.parametrize("engines", [{}, {"engines/a": engine(None)}])
async def test_with_no_engine_to_ask_an_artifact_may_be_registered(
    store: CutStore, loader: Loader, engines: dict[str, EngineRecord]
) -> None:
    """Engines that come later look for themselves."""
    control = Control.on(store, loader.verify, check_plan=EngineOffers(engines).check)
    assert ArtifactState.READY == (await registered(control, for_sm_90()))[-1].state


def test_the_engine_that_lacks_least_is_told() -> None:
    """Of several, so that the remedy is near."""
    old = CPU.model_copy(update={"runtime": "0.0.1"})
    with pytest.raises(PreconditionFailed) as raised:
        EngineOffers({"a": engine(old), "b": engine()}).check(for_sm_90().requires)
    assert "runtime" not in raised.value.message


class TransactionStore(MemoryStore):
    """Remembers what was written together."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[list[str]] = []

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        self.transactions.append([write.key for write in writes])
        return await super().commit(conditions, writes)


# Turns red when: Artifacts._conclude writes the audit record in a commit of its own.
@pytest.mark.parametrize("failure", [None, CorruptData("block 3")])
async def test_a_verdict_and_its_audit_record_are_one_transaction(
    loader: Loader, failure: HalogenError | None
) -> None:
    """PENDING first; then the state, and who asked for it, together or not at all."""
    store, made = TransactionStore(), manifest("a")
    loader.failure = failure
    await registered(Control.on(store, loader.verify), made)
    pending, verdict = store.transactions
    key = keys.artifact(MODEL, made.id)
    [entry] = (await store.list(keys.ARTIFACT_AUDIT)).entries
    assert ([key], [key, entry.key]) == (pending, verdict)
    audit = ArtifactAuditRecord.decode(entry.value)
    state = ArtifactState.REJECTED if failure else ArtifactState.READY
    assert ("ada", "test", state) == (audit.who, audit.why, audit.state)
    assert (failure.message if failure else "") == audit.reason


async def test_every_verification_has_its_audit_record(
    control: Control, loader: Loader, store: MemoryStore
) -> None:
    """In order; a look at what is judged already leaves none."""
    loader.failure = CorruptData("bad")
    await registered(control, manifest("a"))
    await registered(control, manifest("a"))
    loader.failure = None
    await registered(control, manifest("a"), reverify=True)
    records = [ArtifactAuditRecord.decode(e.value) for e in (await store.list(keys.ARTIFACT_AUDIT)).entries]
    assert [ArtifactState.REJECTED, ArtifactState.READY] == [record.state for record in records]


@pytest.mark.parametrize("words", ["", "  ", "x" * 1001])
async def test_who_registers_and_why_is_said(control: Control, store: MemoryStore, words: str) -> None:
    """An audit record without a name or a reason is none."""
    for field in ("who", "why"):
        with pytest.raises(InvalidRequest, match=field):
            await registered(control, manifest("a"), **{field: words})
    assert () == (await store.list("")).entries


UNTRUSTED = {
    "unsigned": (b"", "is not signed"),
    "by a stranger": (signed_by(manifest("a").id, 3), "none of these keys is trusted"),
    "of another artifact": (signed_by(manifest("b").id, 1), "not of this artifact"),
}


# Turns red when: Artifacts.register does not ask its TrustedKeys, or takes UNTRUSTED for a passing trouble.
@pytest.mark.parametrize("case", UNTRUSTED)
async def test_what_nobody_trusted_has_signed_is_rejected(store: CutStore, loader: Loader, case: str) -> None:
    """Before a loader is asked; a good signature gives it another try."""
    signatures, expected = UNTRUSTED[case]
    control, made = Control.on(store, loader.verify, trust=trusting(1, 2)), manifest("a")
    last = (await registered(control, made, signatures=signatures))[-1]
    assert ArtifactState.REJECTED == last.state
    assert last.reason.startswith("UNTRUSTED: ")
    assert expected in last.reason
    assert [] == loader.asked
    again = await registered(control, made, signatures=signed_by(made.id, 2, 3), reverify=True)
    assert ArtifactState.READY == again[-1].state


async def test_a_key_that_is_trusted_no_more_publishes_nothing(store: CutStore, loader: Loader) -> None:
    """Rotation: READY under the old key, published under the new one once it has signed, too."""
    made = manifest("a")
    await registered(
        Control.on(store, loader.verify, trust=trusting(1)), made, signatures=signed_by(made.id, 1)
    )
    control = Control.on(store, loader.verify, trust=trusting(2))
    with pytest.raises(PreconditionFailed, match="UNTRUSTED"):
        await control.publications.publish(order(made.id))
    await registered(control, made, signatures=signed_by(made.id, 1, 2))
    assert 1 == await control.publications.publish(order(made.id))
    assert 1 == len(loader.asked)


async def test_a_loaders_distrust_is_a_verdict(store: CutStore, loader: Loader) -> None:
    """Where the loaders alone are told whom to trust."""
    loader.failure = PreconditionFailed("UNTRUSTED: not signed", reason="UNTRUSTED")
    last = (await registered(Control.on(store, loader.verify), manifest("a")))[-1]
    assert (ArtifactState.REJECTED, "UNTRUSTED: not signed") == (last.state, last.reason)


async def test_signatures_that_cannot_be_read_are_refused(control: Control, store: MemoryStore) -> None:
    """Whether or not anybody looks at them."""
    with pytest.raises(InvalidRequest, match="halogen sign"):
        await registered(control, manifest("a"), signatures=b"{}")
    assert () == (await store.list("")).entries


async def test_signatures_are_bounded_also_beside_an_id(control: Control) -> None:
    """They would not be looked at; still, what is too long is refused.

    Fault injection: turns red when the servicer leaves the bound to `register`.
    """
    nobody: Any = None
    servicer = ControlServicer(control, nobody, nobody, nobody, nobody)
    request = pb.RegisterArtifactRequest(model=MODEL, artifact_id="a" * 64, signatures=b"x" * 8193)
    with pytest.raises(InvalidRequest, match="more than 8192 bytes"):
        await anext(aiter(servicer.RegisterArtifact(request, nobody)))
