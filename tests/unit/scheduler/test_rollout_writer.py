"""What the leader writes when a publish ends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from services.common.background import background
from services.common.errors import Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, Revision
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
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationState,
    Serving,
    Target,
)
from services.common.registry.store import Ambiguous, Delete, Entry, Put, Unchanged
from services.common.registry.view import View
from services.scheduler.rollout import Commit
from services.scheduler.rollout_transaction import Standing, transaction
from services.scheduler.rollout_writer import RolloutWriter, Views
from tests.unit.scheduler.builders import (
    ARTIFACT,
    OTHER,
    SERVING_KEY,
    TARGET_KEY,
    engine_record,
    gateway,
    generation,
    standing,
    target,
)

M = ModelName("m")
INTENT_KEY = keys.intent(M, Revision(1))
CANARY = keys.target(M, Cohort.CANARY)


class Work(NamedTuple):
    """A writer at work, and what it writes."""

    writer: RolloutWriter
    serving: View[Serving]
    targets: View[Target]


@contextlib.asynccontextmanager
async def writing(store: MemoryStore, timeout_s: float = 600) -> AsyncIterator[Work]:
    """A writer at work on `store`."""
    async with (
        View(store, keys.TARGETS, Target) as targets,
        View(store, keys.SERVING, Serving) as serving,
        View(store, keys.ENGINES, EngineRecord) as engines,
        View(store, keys.GATEWAYS, GatewayRecord) as gateways,
    ):
        writer = RolloutWriter(store, Views(targets, serving, engines, gateways), timeout_s)
        writer.lead()
        async with background(writer.follow()):
            yield Work(writer, serving, targets)


def intent(state: PublishState = PublishState.PENDING) -> IntentRecord:
    return IntentRecord(
        time="2026-01-01T00:00:00+00:00",
        who="w",
        why="y",
        cohort=Cohort.STABLE,
        artifact_id=ARTIFACT,
        old_artifact_id=None,
        state=state,
    )


async def until(
    view: View[Serving], revision: int, artifact: ArtifactId = ARTIFACT, key: str = SERVING_KEY
) -> None:
    """Returns once that is served."""
    async with contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            served = view.records.get(key)
            if served and (revision, artifact) == (served.revision, served.artifact_id):
                return


async def failure(view: View[Target]) -> Failure:
    """The target's, when it has failed."""
    async with contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            if (named := view.records.get(TARGET_KEY)) and named.failure:
                return named.failure
    raise AssertionError


async def make_ready(store: MemoryStore, revision: int, artifact: ArtifactId = ARTIFACT) -> None:
    held = engine_record(generations=[generation(artifact, revision=revision)])
    await store.put(keys.engine(held.id), held.encode())
    ready = gateway("g", ARTIFACT, OTHER)
    await store.put(keys.gateway(ready.id), ready.encode())


async def read_intent(store: MemoryStore) -> IntentRecord:
    entry = await store.get(INTENT_KEY)
    assert entry is not None
    return IntentRecord.decode(entry.value)


async def test_the_writer_serves_each_target_once_it_is_ready() -> None:
    """First a target, then the next one, in whatever order facts arrive."""
    store = MemoryStore()
    async with writing(store) as work:
        await store.put(TARGET_KEY, target(1).encode())
        await make_ready(store, 1)
        await until(work.serving, 1)
        await store.put(TARGET_KEY, target(2, OTHER).encode())
        await make_ready(store, 2, OTHER)
        await until(work.serving, 2, OTHER)


async def test_a_commit_is_one_transaction() -> None:
    """What gateways use, the commit's record and the end of the intent are there together.

    Fault injection: turns red when `transaction` leaves out the intent, or `_commit` the commit's record.
    """
    store = MemoryStore()
    await store.put(INTENT_KEY, intent().encode())
    await store.put(TARGET_KEY, target().encode())
    async with writing(store) as work:
        await make_ready(store, 1)
        await until(work.serving, 1)
        entry = await store.get(keys.commit(M, Revision(1)))
        assert entry is not None
        commit, ended = CommitRecord.decode(entry.value), await read_intent(store)
    assert (ARTIFACT, (ProcessId("e"),), ()) == (commit.artifact_id, commit.ready, commit.waiting_for)
    assert PublishState.APPLIED is ended.state
    assert commit.time == ended.end_time
    assert commit.ready == work.serving.records[SERVING_KEY].ready


async def test_a_failure_stands_with_target_and_intent() -> None:
    """Nothing is served by it, and a sound engine that comes later changes nothing."""
    store = MemoryStore()
    await store.put(INTENT_KEY, intent().encode())
    await store.put(TARGET_KEY, target().encode())
    held = engine_record(generations=[generation(state=GenerationState.FAILED)])
    await store.put(keys.engine(held.id), held.encode())
    async with writing(store) as work:
        told = await failure(work.targets)
        await make_ready(store, 1)
        await store.put(CANARY, target(2).encode())
        await store.put(keys.engine(held.id), _both().encode())
        await until(work.serving, 2, key=keys.serving(M, Cohort.CANARY))
    assert SERVING_KEY not in work.serving.records
    ended = await read_intent(store)
    assert (PublishState.FAILED, told) == (ended.state, ended.failure)


def _both() -> EngineRecord:
    canary = generation(revision=2).model_copy(update={"cohort": Cohort.CANARY})
    return engine_record(generations=[generation(), canary])


async def test_the_writer_wakes_when_a_publish_has_waited_too_long() -> None:
    """Nothing else happens meanwhile: its own clock tells. Fault injection: turns red when `_due` sets no timer."""
    store = MemoryStore()
    wanted = target().model_copy(update={"strategy": Strategy(min_ready=2, timeout_ms=50)})
    await store.put(TARGET_KEY, wanted.encode())
    await make_ready(store, 1)
    async with writing(store) as work:
        assert Stage.COMMIT is (await failure(work.targets)).stage


async def test_what_moved_only_in_revision_swaps_nothing() -> None:
    """The same artifact published again is applied, and no swap is told of."""
    store = MemoryStore()
    with capture_logs() as logs:
        async with writing(store) as work:
            for revision in (1, 2):
                await store.put(TARGET_KEY, target(revision).encode())
                await make_ready(store, revision)
                await until(work.serving, revision)
    told = [entry["event"] for entry in logs]
    assert (2, 1) == (told.count("publish_applied"), told.count("atomic_swap_commit"))


def test_an_intent_that_has_ended_stays_as_it_is() -> None:
    """A registry whose records were mended by hand does not stop the leader."""
    step = Commit(TARGET_KEY, target(), (ProcessId("e"),), ())
    superseded = Entry(INTENT_KEY, intent(PublishState.SUPERSEDED).encode(), 1)
    seen = Standing(Entry(TARGET_KEY, target().encode(), 1), None, superseded)
    due = transaction(step, seen, "2026-01-01T00:00:00+00:00")
    assert due is not None
    assert [SERVING_KEY, keys.commit(M, Revision(1))] == [write.key for write in due.writes]


def test_what_another_publish_came_before_is_not_written() -> None:
    """The target that stands, not the view's, is what counts. Turns red when: `transaction` compares no revisions."""
    step = Commit(TARGET_KEY, target(), (ProcessId("e"),), ())
    assert transaction(step, Standing(Entry(TARGET_KEY, target(2).encode(), 1), None, None), "") is None


async def test_a_gateway_that_dies_holds_nobody_up_beyond_its_lease() -> None:
    """Its record, without the tokenizer, is waited for; with the end of its lease the cohort moves.

    Fault injection: with the gateways' view left out of those that RolloutWriter follows, nothing notices its end.
    """
    store = MemoryStore()
    both = [generation(), generation(OTHER, revision=2).model_copy(update={"cohort": Cohort.CANARY})]
    async with writing(store) as work, store.lease(10) as lease:
        for record in (gateway("dead", OTHER), gateway("g", ARTIFACT, OTHER)):
            await store.put(
                keys.gateway(record.id), record.encode(), lease.id if record.id == "dead" else None
            )
        held = engine_record(generations=both)
        await store.put(keys.engine(held.id), held.encode())
        await store.put(TARGET_KEY, target(1).encode())
        await store.put(CANARY, target(2, OTHER).encode())
        await until(work.serving, 2, OTHER, keys.serving(M, Cohort.CANARY))
        assert SERVING_KEY not in work.serving.records
        store.expire(lease.id)
        await until(work.serving, 1)


async def test_the_writer_goes_on_after_an_outage() -> None:
    """What became due while the registry was away is written when it is back."""
    store = MemoryStore()
    await make_ready(store, 1)
    async with writing(store) as work:
        await work.serving.synced()
        await store.put(TARGET_KEY, target(1).encode())
        with store.outage():
            await work.serving.synced()
        await until(work.serving, 1)


async def test_the_writer_trusts_the_store_over_its_view() -> None:
    """A newer revision that its view has not shown yet is not overwritten."""
    store = MemoryStore()
    await store.put(TARGET_KEY, target(1).encode())
    await store.put(SERVING_KEY, standing(5, OTHER).encode())
    await make_ready(store, 1)
    async with writing(store) as work:
        await work.serving.synced()
        await work.writer._write(Commit(TARGET_KEY, target(1), (), ()))
        assert {SERVING_KEY: standing(5, OTHER)} == work.serving.records
    entry = await store.get(SERVING_KEY)
    assert entry is not None
    assert standing(5, OTHER) == Serving.decode(entry.value)


async def test_the_writer_replaces_what_is_no_record() -> None:
    """A value that nobody can read does not block its cohort for ever."""
    store = MemoryStore()
    await store.put(SERVING_KEY, b"not a record")
    await store.put(TARGET_KEY, target(1).encode())
    await make_ready(store, 1)
    async with writing(store) as work:
        await until(work.serving, 1)


class DoubtfulStore(MemoryStore):
    """The next transaction is applied, or not, and its answer lost; the next reading after it fails, too."""

    cut = ""
    _is_away = False

    async def get(self, key: str) -> Entry | None:
        if self._is_away:
            self._is_away = False
            raise Unavailable("away")
        return await super().get(key)

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if not (self.cut and conditions):
            return await super().commit(conditions, writes)
        if self.cut == "after":
            await super().commit(conditions, writes)
        self.cut, self._is_away = "", True
        raise Ambiguous("cut")


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_whose_answer_was_lost_is_told_of_once(cut: str) -> None:
    """Whether it was applied or had to be made again, the log has it, and the swap, as of any other.

    Fault injection: turns red when `_write` does not note what is in doubt, `_look_back` forgets it when it cannot read,
    or takes whatever stands for its own.
    """
    store = DoubtfulStore()
    await store.put(INTENT_KEY, intent().encode())
    await store.put(TARGET_KEY, target().encode())
    with capture_logs() as logs:
        async with writing(store) as work:
            await work.serving.synced()
            store.cut = cut
            await make_ready(store, 1)
            await until(work.serving, 1)
            await store.put(CANARY, target(2).encode())
            await store.put(keys.engine(_both().id), _both().encode())
            await until(work.serving, 2, key=keys.serving(M, Cohort.CANARY))
    told = [
        (entry["event"], entry["key"])
        for entry in logs
        if entry["event"] in ("publish_applied", "atomic_swap_commit")
    ]
    expected = [
        (event, key) for key in (TARGET_KEY, CANARY) for event in ("publish_applied", "atomic_swap_commit")
    ]
    assert expected == told


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_failure_whose_answer_was_lost_is_told_of_once(cut: str) -> None:
    """As a commit is."""
    store = DoubtfulStore()
    held = engine_record(generations=[generation(state=GenerationState.FAILED)])
    await store.put(keys.engine(held.id), held.encode())
    with capture_logs() as logs:
        async with writing(store) as work:
            await work.serving.synced()
            await store.put(INTENT_KEY, intent().encode())
            store.cut = cut
            await store.put(TARGET_KEY, target().encode())
            await failure(work.targets)
            await make_ready(store, 1)
            await store.put(CANARY, target(2).encode())
            await store.put(keys.engine(held.id), _both().encode())
            await until(work.serving, 2, key=keys.serving(M, Cohort.CANARY))
    assert [TARGET_KEY] == [entry["key"] for entry in logs if entry["event"] == "publish_failed"]
