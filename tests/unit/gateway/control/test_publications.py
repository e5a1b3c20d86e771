"""Publishing: by compare-and-set, audited, and never moving traffic to what is not verified."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from services.common.errors import (
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from services.common.ids import Cohort, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import (
    AuditRecord,
    LastRevision,
    Served,
    Serving,
    Target,
)
from services.common.registry.store import Delete, Entry, Put, Unchanged
from services.gateway.control import Control
from services.gateway.publications import TRIES
from tests.unit.gateway.control.builders import (
    MODEL,
    CutStore,
    Loader,
    manifest,
    order,
    read,
    registered,
)


async def test_publishing_writes_target_revision_and_audit(control: Control, store: MemoryStore) -> None:
    """All in one transaction; the revision is the model's next, across cohorts."""
    old, new = manifest("a"), manifest("b")
    for made in (old, new):
        await registered(control, made)
    revisions = [
        await control.publications.publish(order(old.id)),
        await control.publications.publish(order(old.id, cohort=Cohort.CANARY)),
        await control.publications.publish(order(new.id)),
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
    """Unknown, PENDING and REJECTED artifacts move nothing. Turns red when: Publications._check skips the state."""
    with pytest.raises(NotFound, match="register it first"):
        await control.publications.publish(order("c" * 64))
    loader.failure = CorruptData("block 0")
    await registered(control, manifest("a"))
    with pytest.raises(PreconditionFailed, match="REJECTED"):
        await control.publications.publish(order(manifest("a").id))
    assert () == (await store.list(keys.TARGETS)).entries


async def test_an_expected_revision_that_passed_is_a_conflict(control: Control) -> None:
    """Both values are told; nothing is written."""
    made = manifest("a")
    await registered(control, made)
    await control.publications.publish(order(made.id, expected=0))
    with pytest.raises(Conflict) as raised:
        await control.publications.publish(order(made.id, expected=0))
    assert {"expected": "0", "actual": "1"} == raised.value.metadata
    assert 2 == await control.publications.publish(order(made.id, expected=1))


async def test_publishes_at_once_each_get_a_revision(control: Control) -> None:
    """The server tries its compare-and-set again; no two share a revision."""
    made = manifest("a")
    await registered(control, made)
    revisions = await asyncio.gather(*(control.publications.publish(order(made.id)) for _ in range(8)))
    assert list(range(1, 9)) == sorted(revisions)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_publish_that_was_cut_off_is_applied_once(
    control: Control, store: CutStore, how: str
) -> None:
    """The write is ambiguous: it is read back, not repeated blindly."""
    made = manifest("a")
    await registered(control, made)
    store.cut = how
    assert 1 == await control.publications.publish(order(made.id))
    assert 1 == len((await store.list(keys.AUDIT)).entries)


async def test_a_registry_that_lost_its_revisions_goes_on_above_what_is_held(
    store: CutStore, loader: Loader
) -> None:
    """Engines take no lower revision than they hold, so none is given; a conflict names the same number."""
    control = Control.on(store, loader.verify, known=lambda _: Revision(15))
    await registered(control, manifest("a"))
    assert 16 == await control.publications.publish(order(manifest("a").id))
    with pytest.raises(Conflict, match="16"):
        await control.publications.publish(order(manifest("a").id, expected=1))


async def test_unpublishing_withdraws_target_and_serving_under_the_next_revision(
    control: Control, store: MemoryStore
) -> None:
    """One transaction leaves records that say so, and who did it."""
    made, key = manifest("a"), keys.serving(MODEL, Cohort.STABLE)
    await registered(control, made)
    await control.publications.publish(order(made.id))
    await store.put(key, Serving(revision=Revision(1), artifact_id=made.id).encode())
    assert 2 == await control.publications.publish(order(None, expected=1))
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    before = Served(revision=Revision(1), artifact_id=made.id)
    assert Target(revision=Revision(2), artifact_id=None, who="ada", why="test", served=before) == target
    assert Serving(revision=Revision(2), artifact_id=None) == await read(store, key, Serving.decode)
    audit = await read(store, keys.audit(MODEL, Revision(2)), AuditRecord.decode)
    assert isinstance(audit, AuditRecord)
    assert (made.id, None) == (audit.old_artifact_id, audit.new_artifact_id)
    assert 3 == await control.publications.publish(order(made.id))


async def test_what_is_not_published_cannot_be_unpublished(control: Control, store: MemoryStore) -> None:
    """Never published, or unpublished already: nothing is written."""
    with pytest.raises(NotFound, match="m@stable is not published"):
        await control.publications.publish(order(None))
    await registered(control, manifest("a"))
    await control.publications.publish(order(manifest("a").id))
    await control.publications.publish(order(None))
    with pytest.raises(NotFound, match="m@stable is not published"):
        await control.publications.publish(order(None))
    assert 2 == len((await store.list(keys.AUDIT)).entries)


class MovingStore(MemoryStore):
    """Another writer moves what is served just before the next transaction."""

    moves: tuple[Put, ...] = ()

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        moves, self.moves = self.moves, ()
        if moves:
            await super().commit((), moves)
        return await super().commit(conditions, writes)


class OvertakenStore(MemoryStore):
    """Somebody does something right after the next look at a model's last revision."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> Entry | None:
        entry = await super().get(key)
        if key.startswith(keys.REVISIONS) and (meanwhile := self.meanwhile):
            self.meanwhile = None
            await meanwhile()
        return entry


async def test_a_publish_that_comes_between_two_looks_is_gone_before(loader: Loader) -> None:
    """Who has read the last revision before it and the target after it tries again: its own is the next one.

    Fault injection: turns red (the intent would be written twice) when `Seen.is_behind` says no.
    """
    store, made = OvertakenStore(), manifest("a")
    control = Control.on(store, loader.verify)
    await registered(control, made)
    elsewhere = Control.on(store, loader.verify)
    store.meanwhile = lambda: elsewhere.publications.publish(order(made.id))
    assert 2 == await control.publications.publish(order(made.id))


class CountedStore(MemoryStore):
    """Knows how many transactions were tried, and lets others have their turn before each answer."""

    commits = 0

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        self.commits += 1
        return await super().commit(conditions, writes)

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(0)
        return await super().get(key)


async def test_publishes_of_a_model_that_come_together_take_turns(loader: Loader) -> None:
    """None is tried in vain, and all are accepted. Fault injection: turns red when `Publications.insist` has no turns."""
    store, made = CountedStore(), manifest("a")
    control = Control.on(store, loader.verify)
    await registered(control, made)
    before = store.commits
    revisions = await asyncio.gather(
        *(control.publications.publish(order(made.id)) for _ in range(3 * TRIES))
    )
    assert [*range(1, 3 * TRIES + 1)] == sorted(revisions)
    assert 3 * TRIES == store.commits - before


async def test_a_publish_that_is_served_in_the_same_moment_is_withdrawn_all_the_same(loader: Loader) -> None:
    """The scheduler's write comes between: its revision is older than the withdrawal's.

    Fault injection: publication_plan._withdrawal writes only where something is served.
    """
    store, made, key = MovingStore(), manifest("a"), keys.serving(MODEL, Cohort.STABLE)
    control = Control.on(store, loader.verify)
    await registered(control, made)
    await control.publications.publish(order(made.id))
    store.moves = (Put(key, Serving(revision=Revision(1), artifact_id=made.id).encode()),)
    assert 2 == await control.publications.publish(order(None))
    assert Serving(revision=Revision(2), artifact_id=None) == await read(store, key, Serving.decode)


@pytest.mark.parametrize("words", ["", "  ", "x" * 1001])
async def test_who_and_why_are_said(control: Control, words: str) -> None:
    """An audit record without a name or a reason is none."""
    with pytest.raises(InvalidRequest, match="who"):
        await control.publications.publish(order("a" * 64)._replace(who=words))
    with pytest.raises(InvalidRequest, match="why"):
        await control.publications.publish(order("a" * 64)._replace(why=words))


@pytest.mark.parametrize("given", ["", "m", "A" * 64, "../" + "a" * 61])
async def test_what_is_no_artifact_id_is_not_published(
    control: Control, store: MemoryStore, given: str
) -> None:
    """Nor does an empty one unpublish. Fault injection: turns red when `check_order` does not look at the id."""
    with pytest.raises(InvalidRequest, match="64 lower-case hexadecimal digits"):
        await control.publications.publish(order(given))
    assert () == (await store.list("")).entries


@pytest.mark.parametrize("field", ["who", "why"])
@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x9b", "\u2028", "\u202e"])
async def test_words_for_the_record_hold_no_control_character(
    control: Control, store: MemoryStore, field: str, character: str
) -> None:
    """They are shown in terminals. Fault injection: turns red when `check_words` looks at lengths alone."""
    words: dict[str, Any] = {field: f"ada{character}bob"}
    with pytest.raises(InvalidRequest, match=rf"{field} holds the control character \\u[0-9a-f]{{4}}"):
        await control.publications.publish(order("a" * 64)._replace(**words))
    with pytest.raises(InvalidRequest, match=f"{field} holds"):
        await registered(control, manifest("a"), **words)
    assert () == (await store.list("")).entries


class BusyStore(CutStore):
    """Another publish comes before every transaction, while it is busy."""

    is_busy = False
    standing = 0

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if self.is_busy:
            self.standing += 1
            record = LastRevision(revision=Revision(self.standing))
            await super().commit((), [Put(keys.revision(MODEL), record.encode())])
        return await super().commit(conditions, writes)


async def test_who_is_always_too_late_is_told_both_revisions(loader: Loader) -> None:
    """What the last of its tries was to follow, and what stands by now; an abort likewise.

    Fault injection: turns red when `outpaced` leaves out one of the two, or `publish` keeps the first try's.
    """
    store, made = BusyStore(), manifest("a")
    control = Control.on(store, loader.verify)
    await registered(control, made)
    await control.publications.publish(order(made.id))
    store.is_busy, store.standing = True, 100
    for call, last in (
        (control.publications.publish(order(made.id)), TRIES),
        (control.aborts.abort(order(None)), 2 * TRIES),
    ):
        with pytest.raises(Conflict) as raised:
            await call
        assert {"expected": str(99 + last), "actual": str(100 + last)} == raised.value.metadata
