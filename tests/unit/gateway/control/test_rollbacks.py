"""Back to what was served before, and out of a publish that is not served yet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.common.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from services.common.ids import ArtifactId, Cohort, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.publish_records import CommitRecord, Failure, Stage
from services.common.registry.records import GenerationRecord, GenerationState, Serving, Target
from services.common.registry.store import Delete, Entry, Listing, Put, Unchanged
from services.gateway.control import Control
from services.gateway.rollbacks import Committed, RollbackOrder, RolledBack, chosen
from tests.unit.gateway.control.builders import (
    MODEL,
    CutStore,
    Loader,
    engine,
    manifest,
    order,
    read,
    registered,
)

A, B, C = (manifest(digit).id for digit in "abc")
BACK = RollbackOrder(MODEL, Cohort.STABLE, None, None, who="ada", why="test")


def commit(revision: int, artifact_id: ArtifactId, cohort: Cohort = Cohort.STABLE) -> Committed:
    record = CommitRecord(time="now", cohort=cohort, artifact_id=artifact_id, ready=())
    return Committed(Revision(revision), record)


def serving(revision: int, artifact_id: ArtifactId | None) -> Serving:
    return Serving(revision=Revision(revision), artifact_id=artifact_id)


@pytest.mark.parametrize(
    ("committed", "now", "expected"),
    [
        ([commit(1, A), commit(2, B)], serving(2, B), A),
        ([commit(1, A), commit(2, B), commit(5, B)], serving(5, B), A),
        ([commit(1, C), commit(2, A), commit(3, B)], serving(3, B), A),
        ([commit(1, A), commit(2, B), commit(3, A)], serving(3, A), B),
        ([commit(1, A)], serving(2, None), A),
        ([commit(1, A), commit(2, C, Cohort.CANARY), commit(3, B)], serving(3, B), A),
    ],
    ids=["before", "published twice", "the last", "back again", "unpublished", "other cohort"],
)
def test_the_last_other_artifact_that_served_is_chosen(
    committed: Sequence[Committed], now: Serving, expected: ArtifactId
) -> None:
    """In whatever order the records come. Turns red when: `chosen` compares revisions, not artifacts."""
    assert expected == chosen(BACK, list(reversed(committed)), now)


def test_a_revision_that_served_can_be_asked_for() -> None:
    """Also the artifact that is served now: it is published again."""
    committed = [commit(1, A), commit(2, B), commit(3, C)]
    assert A == chosen(BACK._replace(to_revision=Revision(1)), committed, serving(3, C))
    assert C == chosen(BACK._replace(to_revision=Revision(3)), committed, serving(3, C))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (BACK, "m@stable has served no other artifact than now"),
        (BACK._replace(to_revision=Revision(7)), "m@stable has not served revision 7"),
        (BACK._replace(to_revision=Revision(2)), "m@stable has not served revision 2"),
    ],
    ids=["nothing else", "unknown", "of another cohort"],
)
def test_where_there_is_no_way_back_it_is_said(order: RollbackOrder, expected: str) -> None:
    """With the command that shows what there was."""
    with pytest.raises(NotFound, match=f"{expected}; see .*halogen history m") as raised:
        chosen(order, [commit(1, A), commit(2, B, Cohort.CANARY)], serving(1, A))
    assert "NOTHING_TO_ROLL_BACK_TO" == raised.value.reason


async def serve(control: Control, store: MemoryStore, artifact_id: ArtifactId) -> Revision:
    """Publishes it, and commits it as the leader does."""
    revision = await control.publications.publish(order(artifact_id))
    _, record = commit(revision, artifact_id)
    await store.put(keys.commit(MODEL, revision), record.encode())
    await store.put(keys.serving(MODEL, Cohort.STABLE), serving(revision, artifact_id).encode())
    return revision


async def named(store: MemoryStore) -> Target:
    target = await read(store, keys.target(MODEL, Cohort.STABLE), Target.decode)
    assert isinstance(target, Target)
    return target


async def fail(store: MemoryStore) -> None:
    """The leader gives up what is named."""
    failure = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")
    failed = (await named(store)).model_copy(update={"failure": failure})
    await store.put(keys.target(MODEL, Cohort.STABLE), failed.encode())


@pytest.fixture
async def ready(control: Control) -> Control:
    """Control of three artifacts that can be published."""
    for digit in "abc":
        await registered(control, manifest(digit))
    return control


async def test_a_rollback_is_a_publish_under_the_next_revision(ready: Control, store: CutStore) -> None:
    """Compared and audited like any other."""
    await serve(ready, store, A)
    await serve(ready, store, B)
    with pytest.raises(Conflict) as raised:
        await ready.rollbacks.roll_back(BACK._replace(expected_revision=Revision(1)))
    assert {"expected": "1", "actual": "2"} == raised.value.metadata
    assert RolledBack(Revision(3), A) == await ready.rollbacks.roll_back(BACK)
    assert (3, A, "ada") == ((target := await named(store)).revision, target.artifact_id, target.who)


async def test_a_rollback_never_goes_to_what_is_pending(ready: Control, store: CutStore) -> None:
    """Whoever wants back does not want that: an abort is named, and a revision that is asked for is taken all the same.

    Fault injection: turns red when `roll_back` does not ask `check_not_pending`.
    """
    for artifact_id in (B, A):
        await serve(ready, store, artifact_id)
    await ready.publications.publish(order(B))
    with pytest.raises(
        PreconditionFailed, match=r"revision 3 of m@stable.* pending.* halogen abort m;"
    ) as raised:
        await ready.rollbacks.roll_back(BACK)
    assert "ROLLBACK_TO_PENDING" == raised.value.reason
    assert RolledBack(Revision(4), B) == await ready.rollbacks.roll_back(
        BACK._replace(to_revision=Revision(1))
    )


async def test_a_rollback_leaves_what_is_pending(ready: Control, store: CutStore) -> None:
    """Where that is something else. Fault injection: turns red when `check_not_pending` does not compare artifacts."""
    for artifact_id in (B, A):
        await serve(ready, store, artifact_id)
    await ready.publications.publish(order(C))
    assert RolledBack(Revision(4), B) == await ready.rollbacks.roll_back(BACK)


async def test_a_rollback_does_not_leave_what_is_sound_for_a_publish_that_failed(
    ready: Control, store: CutStore
) -> None:
    """Engines have gone back to what was served by then; going back further, or publishing that again, is asked for by name.

    Fault injection: turns red when `roll_back` does not ask `check_not_failed`, or that asks for no failure.
    """
    for artifact_id in (B, A):
        await serve(ready, store, artifact_id)
    await ready.publications.publish(order(C))
    await fail(store)
    with pytest.raises(
        PreconditionFailed, match=r"revision 3 of m@stable has failed, so revision 2, .* stays .*--to"
    ) as raised:
        await ready.rollbacks.roll_back(BACK)
    assert "ROLLBACK_OF_FAILED" == raised.value.reason
    for revision, (named_by, artifact_id) in enumerate([(1, B), (2, A)], start=4):
        back = BACK._replace(to_revision=Revision(named_by))
        assert RolledBack(Revision(revision), artifact_id) == await ready.rollbacks.roll_back(back)


async def test_a_model_that_was_never_published_is_said_to_be_none(ready: Control) -> None:
    """It may be misspelt. Fault injection: turns red when `roll_back` does not look at revisions/."""
    with pytest.raises(NotFound, match=r"nothing was ever published as m; .*halogen status") as raised:
        await ready.rollbacks.roll_back(BACK)
    assert "MODEL_NOT_FOUND" == raised.value.reason


def test_a_cohort_that_has_served_nothing_is_said_so() -> None:
    """There is no way back to nothing."""
    with pytest.raises(NotFound, match="m@stable has served nothing yet"):
        chosen(BACK, [commit(1, A, Cohort.CANARY)], None)


async def test_a_rollback_says_who_and_why(ready: Control) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidRequest, match="why"):
        await ready.rollbacks.roll_back(BACK._replace(why=" "))


async def test_an_abort_goes_on_with_what_is_served(ready: Control, store: CutStore) -> None:
    """The pending one is superseded by a revision that names it."""
    await serve(ready, store, A)
    await ready.publications.publish(order(B))
    assert 3 == await ready.aborts.abort(order(None))
    assert (3, A) == ((target := await named(store)).revision, target.artifact_id)


async def test_an_abort_names_nothing_that_is_no_artifact(ready: Control, store: CutStore) -> None:
    """Whatever a damaged record of serving/ says. Fault injection: turns red when `attempt` takes "" for nothing."""
    await serve(ready, store, A)
    await ready.publications.publish(order(B))
    await store.put(keys.serving(MODEL, Cohort.STABLE), serving(1, ArtifactId("")).encode())
    with pytest.raises(NotFound, match="has no artifact ''"):
        await ready.aborts.abort(order(None))
    assert B == (await named(store)).artifact_id


async def test_an_abort_of_the_first_publish_leaves_nothing(ready: Control, store: CutStore) -> None:
    """Nothing was served, so nothing is to be."""
    await ready.publications.publish(order(A))
    assert 2 == await ready.aborts.abort(order(None))
    assert (await named(store)).artifact_id is None


async def test_an_abort_of_another_revision_than_the_expected_one_is_refused(
    ready: Control, store: CutStore
) -> None:
    """Whoever wants to end something is not told to publish. Turns red when: `next_revision` says so."""
    await serve(ready, store, A)
    await ready.publications.publish(order(B))
    with pytest.raises(Conflict, match=r"at revision 2, not 1; nothing was changed: look .*, and ask again"):
        await ready.aborts.abort(order(None, expected=1))
    assert B == (await named(store)).artifact_id


async def test_only_what_is_pending_can_be_aborted(ready: Control, store: CutStore) -> None:
    """Not what is served, has failed, was withdrawn or was never there."""
    with pytest.raises(PreconditionFailed, match="no publish of m@stable is pending"):
        await ready.aborts.abort(order(None))
    await serve(ready, store, A)
    with pytest.raises(PreconditionFailed, match="no publish of m@stable is pending"):
        await ready.aborts.abort(order(None))
    await ready.publications.publish(order(B))
    await fail(store)
    with pytest.raises(PreconditionFailed, match="pending: revision 2 has failed, "):
        await ready.aborts.abort(order(None))
    await ready.publications.publish(order(None))
    with pytest.raises(PreconditionFailed, match="no publish of m@stable is pending"):
        await ready.aborts.abort(order(None))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (GenerationState.ACTIVE, "what is served is revision 1; see"),
        (GenerationState.FETCHING, "what is served is revision 1; see"),
        (
            GenerationState.RETIRED,
            "and no engine has revision 1 any more: nothing serves, publish again; see",
        ),
    ],
)
async def test_what_serves_after_a_failure_is_what_engines_have(
    ready: Control, store: CutStore, state: GenerationState, expected: str
) -> None:
    """A publish that drained first may have left nothing; what is on its way back counts.

    Fault injection: turns red when `_what_serves` asks serving/ alone.
    """
    await serve(ready, store, A)
    held = GenerationRecord(
        model=MODEL, cohort=Cohort.STABLE, revision=Revision(1), artifact_id=A, state=state
    )
    record = engine().model_copy(update={"generations": (held,)})
    await store.put(keys.engine(record.id), record.encode())
    await store.put(keys.engine(ProcessId("torn")), b"no record")
    await ready.publications.publish(order(B))
    await fail(store)
    with pytest.raises(PreconditionFailed, match=f"pending: revision 2 has failed, {expected}"):
        await ready.aborts.abort(order(None))


class ServingStore(CutStore):
    """The leader serves what is pending just before the next transaction, or between two readings."""

    served: Serving | None = None
    committed: RolledBack | None = None
    before = ""  # the reading of which key, or prefix

    async def get(self, key: str) -> Entry | None:
        await self._serve(key)
        return await super().get(key)

    async def list(self, prefix: str) -> Listing:
        await self._serve(prefix)
        return await super().list(prefix)

    async def _serve(self, reading: str) -> None:
        if self.committed and reading == self.before:
            (revision, artifact_id), self.committed = self.committed, None
            await self.put(keys.commit(MODEL, revision), commit(revision, artifact_id).record.encode())
            await self.put(keys.serving(MODEL, Cohort.STABLE), serving(revision, artifact_id).encode())

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        served, self.served = self.served, None
        if served:
            await super().commit((), [Put(keys.serving(MODEL, Cohort.STABLE), served.encode())])
        return await super().commit(conditions, writes)


async def test_an_abort_that_comes_too_late_undoes_nothing(loader: Loader) -> None:
    """What has been served meanwhile stays, and that is said.

    Fault injection: turns red when `Aborts._attempt` does not ask that serving/ stays as it was.
    """
    store = ServingStore()
    control = Control.on(store, loader.verify)
    for digit in "ab":
        await registered(control, manifest(digit))
    await serve(control, store, A)
    await control.publications.publish(order(B))
    store.served = serving(2, B)
    with pytest.raises(PreconditionFailed, match="no publish of m@stable is pending"):
        await control.aborts.abort(order(None))
    assert (2, B) == ((target := await named(store)).revision, target.artifact_id)


@pytest.mark.parametrize("before", [keys.commits(MODEL), keys.revision(MODEL)], ids=["chosen", "planned"])
async def test_two_rollbacks_at_once_go_back_once(loader: Loader, before: str) -> None:
    """B is bad. The first is served while the second is chosen, or planned: that does not choose B, and is told both revisions.

    Fault injection: turns red when `roll_back` does not ask `check_still_served`, or reads serving/ after commits/.
    """
    store = ServingStore()
    control = Control.on(store, loader.verify)
    for digit in "ab":
        await registered(control, manifest(digit))
    for artifact_id in (A, B):
        await serve(control, store, artifact_id)
    store.committed, store.before = await control.rollbacks.roll_back(BACK), before
    with pytest.raises(Conflict) as raised:
        await control.rollbacks.roll_back(BACK)
    assert {"expected": "2", "actual": "3"} == raised.value.metadata
    assert (3, A) == ((target := await named(store)).revision, target.artifact_id)


async def test_a_commit_that_nobody_can_read_holds_no_rollback_up(ready: Control, store: CutStore) -> None:
    """Nor a key that is none. Fault injection: turns red when `by_revision` lets the fault pass."""
    for artifact_id in (A, B):
        await serve(ready, store, artifact_id)
    for key in (keys.commit(MODEL, Revision(9)), f"{keys.commits(MODEL)}latest"):
        await store.put(key, b"no record")
    assert RolledBack(Revision(3), A) == await ready.rollbacks.roll_back(BACK)
