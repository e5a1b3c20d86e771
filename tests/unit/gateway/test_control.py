"""Registering and publishing: by compare-and-set, audited, and never moving traffic to what is not verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import PATHS, Manifest, ManifestFile, Role
from services.common.errors import (
    Conflict,
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import ArtifactState, AuditRecord, Record, Serving, Target
from services.common.registry.store import Ambiguous, Delete, Put, Unchanged
from services.gateway.control import ArtifactProgress, Control, PublishOrder, Verified

MODEL = ModelName("m")
ARCHITECTURE = Architecture(
    model_type="llama",
    dtype=DType("bf16"),
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=32,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
)


def manifest(digit: str) -> Manifest:
    """A well-formed manifest; another digit makes another artifact."""
    roles = (Role.CONFIG, Role.TOKENIZER, Role.WEIGHTS)
    files = [ManifestFile(path=PATHS[role], size_bytes=4096, sha256=digit * 64, role=role) for role in roles]
    return Manifest(ARCHITECTURE, tuple(sorted(files, key=lambda file: file.path)))


class Loader:
    """Verifies in two steps, or fails as a test wishes."""

    def __init__(self) -> None:
        self.failure: HalogenError | None = None
        self.asked: list[ArtifactId] = []

    async def verify(self, artifact_id: ArtifactId) -> AsyncGenerator[Verified, None]:
        self.asked.append(artifact_id)
        yield Verified(1, 2)
        if self.failure:
            raise self.failure
        yield Verified(2, 2)


class CutStore(MemoryStore):
    """Applies the next transaction, or not, and then loses the connection."""

    cut: str = ""

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        how, self.cut = self.cut, ""
        if how == "before":
            raise Ambiguous("cut")
        applied = await super().commit(conditions, writes)
        if how == "after":
            raise Ambiguous("cut")
        return applied


@pytest.fixture
def store() -> CutStore:
    return CutStore()


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def control(store: CutStore, loader: Loader) -> Control:
    return Control(store, loader.verify)


async def registered(control: Control, made: Manifest, *, reverify: bool = False) -> list[ArtifactProgress]:
    return [step async for step in control.register(MODEL, made.encode(), reverify=reverify)]


def order(
    artifact_id: str | None, *, expected: int | None = None, cohort: Cohort = Cohort.STABLE
) -> PublishOrder:
    revision = None if expected is None else Revision(expected)
    named = None if artifact_id is None else ArtifactId(artifact_id)
    return PublishOrder(MODEL, cohort, named, revision, who="ada", why="test")


async def read(store: MemoryStore, key: str, record: Callable[[bytes], Record]) -> Record:
    entry = await store.get(key)
    assert entry is not None
    return record(entry.value)


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
        await anext(control.register(model, manifest("a").encode(), reverify=False))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\xff", b"{" * 2_000_000], ids=["empty", "bare", "bytes", "huge"]
)
async def test_a_manifest_that_is_none_is_refused(control: Control, text: bytes) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidRequest):
        await anext(control.register(MODEL, text, reverify=False))


async def test_publishing_writes_target_revision_and_audit(control: Control, store: MemoryStore) -> None:
    """All in one transaction; the revision is the model's next, across cohorts."""
    old, new = manifest("a"), manifest("b")
    for made in (old, new):
        await registered(control, made)
    revisions = [
        await control.publish(order(old.id)),
        await control.publish(order(old.id, cohort=Cohort.CANARY)),
        await control.publish(order(new.id)),
    ]
    assert [1, 2, 3] == revisions
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert Target(revision=Revision(3), artifact_id=new.id, who="ada", why="test") == target
    audit = await read(store, keys.audit(MODEL, Revision(3)), AuditRecord.decode)
    assert isinstance(audit, AuditRecord)
    assert (old.id, new.id, "ada") == (audit.old_artifact_id, audit.new_artifact_id, audit.who)


async def test_what_is_not_ready_is_not_published(
    control: Control, loader: Loader, store: MemoryStore
) -> None:
    """Unknown, PENDING and REJECTED artifacts move nothing. Turns red when: _ready_artifact skips the state."""
    with pytest.raises(NotFound, match="register it first"):
        await control.publish(order("c" * 64))
    loader.failure = CorruptData("block 0")
    await registered(control, manifest("a"))
    with pytest.raises(PreconditionFailed, match="REJECTED"):
        await control.publish(order(manifest("a").id))
    assert () == (await store.list(keys.TARGETS)).entries


async def test_an_expected_revision_that_passed_is_a_conflict(control: Control) -> None:
    """Both values are told; nothing is written."""
    made = manifest("a")
    await registered(control, made)
    await control.publish(order(made.id, expected=0))
    with pytest.raises(Conflict) as raised:
        await control.publish(order(made.id, expected=0))
    assert {"expected": "0", "actual": "1"} == raised.value.metadata
    assert 2 == await control.publish(order(made.id, expected=1))


async def test_publishes_at_once_each_get_a_revision(control: Control) -> None:
    """The server tries its compare-and-set again; no two share a revision."""
    made = manifest("a")
    await registered(control, made)
    revisions = await asyncio.gather(*(control.publish(order(made.id)) for _ in range(8)))
    assert list(range(1, 9)) == sorted(revisions)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_publish_that_was_cut_off_is_applied_once(
    control: Control, store: CutStore, how: str
) -> None:
    """The write is ambiguous: it is read back, not repeated blindly."""
    made = manifest("a")
    await registered(control, made)
    store.cut = how
    assert 1 == await control.publish(order(made.id))
    assert 1 == len((await store.list(keys.AUDIT)).entries)


async def test_a_registry_that_lost_its_revisions_goes_on_above_what_is_held(
    store: CutStore, loader: Loader
) -> None:
    """Engines take no lower revision than they hold, so none is given; a conflict names the same number."""
    control = Control(store, loader.verify, lambda _: Revision(15))
    await registered(control, manifest("a"))
    assert 16 == await control.publish(order(manifest("a").id))
    with pytest.raises(Conflict, match="16"):
        await control.publish(order(manifest("a").id, expected=1))


async def test_unpublishing_withdraws_target_and_serving_under_the_next_revision(
    control: Control, store: MemoryStore
) -> None:
    """One transaction leaves records that say so, and who did it."""
    made, key = manifest("a"), keys.serving(MODEL, Cohort.STABLE)
    await registered(control, made)
    await control.publish(order(made.id))
    await store.put(key, Serving(revision=Revision(1), artifact_id=made.id).encode())
    assert 2 == await control.publish(order(None, expected=1))
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert Target(revision=Revision(2), artifact_id=None, who="ada", why="test") == target
    assert Serving(revision=Revision(2), artifact_id=None) == await read(store, key, Serving.decode)
    audit = await read(store, keys.audit(MODEL, Revision(2)), AuditRecord.decode)
    assert isinstance(audit, AuditRecord)
    assert (made.id, None) == (audit.old_artifact_id, audit.new_artifact_id)
    assert 3 == await control.publish(order(made.id))


async def test_what_is_not_published_cannot_be_unpublished(control: Control, store: MemoryStore) -> None:
    """Never published, or unpublished already: nothing is written."""
    with pytest.raises(NotFound, match="m@stable is not published"):
        await control.publish(order(None))
    await registered(control, manifest("a"))
    await control.publish(order(manifest("a").id))
    await control.publish(order(None))
    with pytest.raises(NotFound, match="m@stable is not published"):
        await control.publish(order(None))
    assert 2 == len((await store.list(keys.AUDIT)).entries)


class MovingStore(MemoryStore):
    """Another writer moves what is served just before the next transaction."""

    moves: tuple[Put, ...] = ()

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        moves, self.moves = self.moves, ()
        if moves:
            await super().commit((), moves)
        return await super().commit(conditions, writes)


async def test_a_publish_that_is_served_in_the_same_moment_is_withdrawn_all_the_same(loader: Loader) -> None:
    """The scheduler's write comes between: its revision is older than the withdrawal's.

    Fault injection: Control._own_part writes the serving record only where it has seen one.
    """
    store, made, key = MovingStore(), manifest("a"), keys.serving(MODEL, Cohort.STABLE)
    control = Control(store, loader.verify)
    await registered(control, made)
    await control.publish(order(made.id))
    store.moves = (Put(key, Serving(revision=Revision(1), artifact_id=made.id).encode()),)
    assert 2 == await control.publish(order(None))
    assert Serving(revision=Revision(2), artifact_id=None) == await read(store, key, Serving.decode)


@pytest.mark.parametrize("words", ["", "  ", "x" * 1001])
async def test_who_and_why_are_said(control: Control, words: str) -> None:
    """An audit record without a name or a reason is none."""
    with pytest.raises(InvalidRequest, match="who"):
        await control.publish(order("a" * 64)._replace(who=words))
    with pytest.raises(InvalidRequest, match="why"):
        await control.publish(order("a" * 64)._replace(why=words))
