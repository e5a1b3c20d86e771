"""What was asked for, and how it ended, is written with every publish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.common.ids import ArtifactId, Cohort, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.publish_records import (
    CommitRecord,
    Failure,
    IntentRecord,
    PublishState,
    Stage,
    Strategy,
)
from services.common.registry.records import Served, Serving, Target
from services.common.registry.store import Delete, Put, Unchanged
from services.gateway.control import Control
from services.gateway.rollbacks import RollbackOrder
from tests.unit.gateway.control.builders import MODEL, CutStore, Loader, manifest, order, read, registered

A = manifest("a").id


async def intents(store: MemoryStore) -> list[IntentRecord]:
    """In the order of their revisions."""
    entries = (await store.list(keys.intents(MODEL))).entries
    return [IntentRecord.decode(entry.value) for entry in sorted(entries)]


async def states(store: MemoryStore) -> list[PublishState]:
    return [each.state for each in await intents(store)]


async def test_a_publish_is_pending_until_somebody_ends_it(control: Control, store: MemoryStore) -> None:
    """Who, why, what and how it is to be done are on record with it, and with the target."""
    await registered(control, manifest("a"))
    strategy = Strategy(min_ready=2, timeout_ms=1_000)
    await control.publications.publish(order(A)._replace(strategy=strategy))
    (intent,) = await intents(store)
    assert (PublishState.PENDING, "") == (intent.state, intent.end_time)
    assert ("ada", "test", A, None) == (intent.who, intent.why, intent.artifact_id, intent.old_artifact_id)
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert isinstance(target, Target)
    assert strategy == intent.strategy == target.strategy


async def test_the_next_publish_of_a_cohort_ends_the_one_before(control: Control, store: MemoryStore) -> None:
    """As SUPERSEDED, and only of its cohort: a slow canary does not hold up stable.

    Fault injection: turns red when `plan` leaves out `_superseding`, or `_pending` looks at the model's last intent.
    """
    await registered(control, manifest("a"))
    for cohort in (Cohort.STABLE, Cohort.CANARY, Cohort.STABLE):
        await control.publications.publish(order(A, cohort=cohort))
    first, canary, last = await intents(store)
    assert (PublishState.SUPERSEDED, 3, last.time) == (first.state, first.superseded_by, first.end_time)
    assert [PublishState.PENDING] * 2 == [canary.state, last.state]


async def test_an_intent_that_nobody_can_read_holds_nobody_up(control: Control, store: MemoryStore) -> None:
    """It stays as it is. Turns red when: `_pending` lets the fault pass."""
    await registered(control, manifest("a"))
    await control.publications.publish(order(A))
    await store.put(keys.intent(MODEL, Revision(1)), b"no record")
    assert 2 == await control.publications.publish(order(A))


@pytest.mark.parametrize("end", [PublishState.APPLIED, PublishState.FAILED])
async def test_what_has_ended_stays_as_it_ended(
    control: Control, store: MemoryStore, end: PublishState
) -> None:
    """The next publish does not call it superseded. Fault injection: turns red when `_pending` skips the state."""
    await registered(control, manifest("a"))
    await control.publications.publish(order(A))
    (intent,) = await intents(store)
    await store.put(keys.intent(MODEL, Revision(1)), intent.ended(end, "now").encode())
    await control.publications.publish(order(A))
    assert [end, PublishState.PENDING] == await states(store)


async def test_an_unpublish_is_applied_as_it_is_said(control: Control, store: MemoryStore) -> None:
    """Nobody has to make ready for it; what was pending is superseded by it."""
    await registered(control, manifest("a"))
    await control.publications.publish(order(A))
    await control.publications.publish(order(None))
    assert [PublishState.SUPERSEDED, PublishState.APPLIED] == await states(store)


class EndingStore(CutStore):
    """A leader commits the pending publish just before the next transaction."""

    ends = False

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if self.ends:
            self.ends = False
            key = keys.intent(MODEL, Revision(1))
            entry = await self.get(key)
            assert entry is not None
            await super().commit(
                (), [Put(key, IntentRecord.decode(entry.value).ended(PublishState.APPLIED, "now").encode())]
            )
        return await super().commit(conditions, writes)


class ServingStore(CutStore):
    """The first publish is served just before the next transaction."""

    serves = False

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if self.serves:
            self.serves = False
            serving = Serving(revision=Revision(1), artifact_id=A)
            await super().commit((), [Put(keys.serving(MODEL, Cohort.STABLE), serving.encode())])
        return await super().commit(conditions, writes)


async def test_an_end_that_comes_between_stands(loader: Loader) -> None:
    """The publish is planned anew. Fault injection: turns red when `_conditions` leaves out the intent."""
    store = EndingStore()
    control = Control.on(store, loader.verify)
    await registered(control, manifest("a"))
    await control.publications.publish(order(A))
    store.ends = True
    assert 2 == await control.publications.publish(order(A))
    assert [PublishState.APPLIED, PublishState.PENDING] == await states(store)


async def test_a_publish_says_what_was_served_when_it_was_accepted(loader: Loader) -> None:
    """Also when a commit comes just before it: it is planned anew.

    Fault injection: turns red when `_conditions` leaves out serving/, or `_target` what is served.
    """
    store = ServingStore()
    control = Control.on(store, loader.verify)
    await registered(control, manifest("a"))
    await control.publications.publish(order(A))
    store.serves = True
    assert 2 == await control.publications.publish(order(A))
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert isinstance(target, Target)
    assert Served(revision=Revision(1), artifact_id=A) == target.served


async def test_a_serving_record_that_nobody_can_read_names_nothing(
    control: Control, store: MemoryStore
) -> None:
    """It holds no publish up."""
    await registered(control, manifest("a"))
    await store.put(keys.serving(MODEL, Cohort.STABLE), b"no record")
    await control.publications.publish(order(A))
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert isinstance(target, Target)
    assert target.served is None


async def test_commits_go_with_their_intents(
    control: Control, store: CutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's last are kept, as its audit is, but for the way back (these were never served, as far as intents say).

    Fault injection: turns red when `plan` deletes no commits.
    """
    monkeypatch.setattr("services.gateway.publication_audit.MAX_RECORDS_OF_MODEL", 2)
    await registered(control, manifest("a"))
    for revision in (1, 2, 3, 4):
        await control.publications.publish(order(A))
        commit = CommitRecord(time="now", cohort=Cohort.STABLE, artifact_id=A, ready=())
        await store.put(keys.commit(MODEL, Revision(revision)), commit.encode())
    for prefix in (keys.audits(MODEL), keys.intents(MODEL), keys.commits(MODEL)):
        kept = [keys.split_revision_key(entry.key)[1] for entry in (await store.list(prefix)).entries]
        assert [3, 4] == kept


async def apply(control: Control, store: CutStore, artifact_id: ArtifactId, cohort: Cohort) -> None:
    """Publishes it, and commits it as the leader does."""
    revision = await control.publications.publish(order(artifact_id, cohort=cohort))
    key = keys.intent(MODEL, revision)
    intent = await read(store, key, IntentRecord.decode)
    assert isinstance(intent, IntentRecord)
    commit = CommitRecord(time="now", cohort=cohort, artifact_id=artifact_id, ready=())
    serving = Serving(revision=revision, artifact_id=artifact_id)
    await store.put(key, intent.ended(PublishState.APPLIED, "now").encode())
    await store.put(keys.commit(MODEL, revision), commit.encode())
    await store.put(keys.serving(MODEL, cohort), serving.encode())


@pytest.mark.parametrize("ends", [PublishState.FAILED, PublishState.SUPERSEDED])
async def test_publishes_that_come_to_nothing_do_not_take_the_way_back(
    control: Control, store: CutStore, monkeypatch: pytest.MonkeyPatch, ends: PublishState
) -> None:
    """However many; nor do those of the other cohort. What serves and the other artifact before it stay on record.

    Fault injection: turns red when `outlived_intents` needs nothing, or `_needed` is about the model and not the cohort, or
    takes the same artifact for a way back.
    """
    monkeypatch.setattr("services.gateway.publication_audit.MAX_RECORDS_OF_MODEL", 7)
    for digit in "abcd":
        await registered(control, manifest(digit))
    b, c, d = (manifest(digit).id for digit in "bcd")
    for artifact_id, cohort in (
        (A, Cohort.STABLE),
        (b, Cohort.STABLE),
        (d, Cohort.CANARY),
        (A, Cohort.STABLE),
        (A, Cohort.STABLE),
    ):
        await apply(control, store, artifact_id, cohort)
    pending = await control.publications.publish(order(c, cohort=Cohort.CANARY))
    for _ in range(20):
        revision = await control.publications.publish(order(c))
        if ends is PublishState.FAILED:
            await fail(store, revision)
    assert 7 == len(await intents(store))
    entries = (await store.list(keys.commits(MODEL))).entries
    assert [2, 3, 5] == [keys.split_revision_key(entry.key)[1] for entry in entries]
    watched = await read(store, keys.intent(MODEL, pending), IntentRecord.decode)
    assert isinstance(watched, IntentRecord)
    assert PublishState.PENDING is watched.state
    back = RollbackOrder(MODEL, Cohort.STABLE, Revision(2), None, who="ada", why="test")
    assert b == (await control.rollbacks.roll_back(back)).artifact_id


async def fail(store: MemoryStore, revision: Revision) -> None:
    """Ends it as the leader does."""
    key, target_key = keys.intent(MODEL, revision), keys.target(MODEL, Cohort.STABLE)
    failure = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")
    intent, target = await read(store, key, IntentRecord.decode), await read(store, target_key, Target.decode)
    assert isinstance(intent, IntentRecord)
    await store.put(key, intent.ended(PublishState.FAILED, "now", failure=failure).encode())
    await store.put(target_key, target.model_copy(update={"failure": failure}).encode())


async def test_an_intent_under_a_key_that_is_none_holds_nobody_up(
    control: Control, store: CutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is somebody else's, and stays. Fault injection: turns red when `outlived_intents` takes every key."""
    monkeypatch.setattr("services.gateway.publication_audit.MAX_RECORDS_OF_MODEL", 2)
    await registered(control, manifest("a"))
    foreign = f"{keys.intents(MODEL)}0-foreign"
    await store.put(foreign, b"{}")
    for _ in range(4):
        await control.publications.publish(order(A))
    assert await store.get(foreign) is not None
