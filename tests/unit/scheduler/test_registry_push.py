"""What the leader does with commits that are to be pushed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.common.background import background
from services.common.backoff import Backoff
from services.common.checkpoint import canonical
from services.common.errors import HalogenError, PreconditionFailed, Unavailable
from services.common.ids import Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.publish_records import CommitRecord, Failure, Stage, SyncStatus
from services.common.registry.records import ArtifactRecord, ArtifactState
from services.common.registry.view import View
from services.scheduler.metrics import export_pushes
from services.scheduler.push_outbox import PushOutbox
from services.scheduler.registry_push import RegistryPush
from tests.scrape import read
from tests.unit.scheduler.builders import ARTIFACT

M = ModelName("m")
MANIFEST = {"files": ["one"]}
BUSY = Unavailable("it is busy", reason="PUSH_NOT_TAKEN")
REFUSED = PreconditionFailed("it does not want it", reason="PUSH_REFUSED")


class FakeReceiver:
    """Takes what it gets, after the failures that it is told to begin with.

    Attributes:
        at_once: Most puts that were under way together.
        gate: Closed, no put returns; `came` is set when one has come.
    """

    def __init__(self) -> None:
        self.failures: list[HalogenError] = []
        self.puts: list[tuple[str, int, Any]] = []
        self.at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.came = asyncio.Event()
        self._under_way = 0

    async def put(self, model: ModelName, revision: Revision, document: bytes) -> None:
        self.puts.append((model, revision, canonical.decode(document)))
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        self.came.set()
        try:
            await self.gate.wait()
        finally:
            self._under_way -= 1
        if self.failures:
            raise self.failures.pop(0)

    @property
    def revisions(self) -> list[int]:
        return [revision for _, revision, _ in self.puts]


class Pushing(NamedTuple):
    """A push at work."""

    push: RegistryPush
    commits: View[CommitRecord]

    async def until(self, status: SyncStatus, *revisions: int) -> list[CommitRecord]:
        """Their commits, once all stand so."""
        wanted = [keys.commit(M, Revision(revision)) for revision in revisions]
        async with asyncio.timeout(30), contextlib.aclosing(self.commits.changes()) as changes:
            async for _ in changes:
                found = [self.commits.records.get(key) for key in wanted]
                if all(each and each.registry_sync_status is status for each in found):
                    return [each for each in found if each]
        raise AssertionError


@contextlib.asynccontextmanager
async def pushing(store: MemoryStore, receiver: FakeReceiver, tries: int = 3) -> AsyncIterator[Pushing]:
    """A scheduler's, which leads."""
    async with View(store, keys.COMMITS, CommitRecord) as commits:
        push = RegistryPush(store, commits, receiver, PushOutbox(tries, lambda: Backoff(0.01, 0.01)))
        push.lead()
        async with background(push.follow()):
            yield Pushing(push, commits)


def commit(status: SyncStatus | None = SyncStatus.PENDING) -> CommitRecord:
    return CommitRecord(
        time="2026-01-01T00:00:00+00:00",
        cohort=Cohort.STABLE,
        artifact_id=ARTIFACT,
        ready=(),
        registry_sync_status=status,
    )


async def write(store: MemoryStore, *revisions: int, status: SyncStatus | None = SyncStatus.PENDING) -> None:
    for revision in revisions:
        await store.put(keys.commit(M, Revision(revision)), commit(status).encode())


@pytest.fixture
async def store() -> MemoryStore:
    """One with the artifact."""
    made = MemoryStore()
    record = ArtifactRecord(manifest=MANIFEST, state=ArtifactState.READY)
    await made.put(keys.artifact(M, ARTIFACT), record.encode())
    return made


async def test_every_pending_commit_is_pushed_once_and_in_order(store: MemoryStore) -> None:
    """Those that are there, then those that come; one at a time, and what is not pending is left alone."""
    receiver = FakeReceiver()
    await write(store, 10, 2, 1)
    await write(store, 3, status=None)
    async with pushing(store, receiver) as work:
        await work.until(SyncStatus.SYNCED, 1, 2, 10)
        await write(store, 11)
        await work.until(SyncStatus.SYNCED, 11)
        assert work.commits.records[keys.commit(M, Revision(3))].registry_sync_status is None
    assert ([1, 2, 10, 11], 1) == (receiver.revisions, receiver.at_once)
    assert {
        "model": "m",
        "revision": 1,
        "cohort": "stable",
        "artifact_id": ARTIFACT,
        "commit_time": "2026-01-01T00:00:00+00:00",
        "manifest": MANIFEST,
    } == receiver.puts[0][2]


async def test_a_passing_failure_is_tried_again_behind_the_others(store: MemoryStore) -> None:
    """And told and counted each time; the same document comes again.

    Fault injection: turns red when `_is_over` does not count.
    """
    receiver = FakeReceiver()
    receiver.failures = [BUSY, BUSY]
    await write(store, 1, 2)
    with capture_logs() as logs:
        async with pushing(store, receiver) as work:
            await work.until(SyncStatus.SYNCED, 1, 2)
    registry = CollectorRegistry()
    export_pushes(registry, work.push)
    assert {"false": 2} == read(registry).by("halogen_push_failures_total", "final")
    assert ([1, 2], 4) == (receiver.revisions[:2], len(receiver.puts))
    assert [False, False] == [each["is_over"] for each in logs if each["event"] == "push_metadata_failed"]
    assert receiver.puts[0][2] == next(put[2] for put in receiver.puts[2:] if put[1] == 1)


@pytest.mark.parametrize(("failures", "last"), [([BUSY] * 3, BUSY), ([REFUSED], REFUSED)])
async def test_a_push_that_fails_for_good_is_on_record(
    store: MemoryStore, failures: list[HalogenError], last: HalogenError
) -> None:
    """After so many tries, or at once where it is refused: FAILED, with stage and reason; asked for, it begins anew.

    Fault injection: turns red when `_is_over` takes what is refused for passing, or counts no tries.
    """
    receiver = FakeReceiver()
    receiver.failures = list(failures)
    await write(store, 1)
    async with pushing(store, receiver) as work:
        [record] = await work.until(SyncStatus.FAILED, 1)
        told = Failure(stage=Stage.PUSH, reason=last.reason, message=last.message)
        assert (told, len(failures)) == (record.registry_failure, len(receiver.puts))
        assert {True: 1, False: len(failures) - 1} == {
            each: work.push.failures[each] for each in (True, False)
        }
        await store.put(keys.commit(M, Revision(1)), record.asked("w", "y").encode())
        [record] = await work.until(SyncStatus.SYNCED, 1)
    assert (None, "w", "y") == (record.registry_failure, record.registry_who, record.registry_why)


async def test_the_next_leader_goes_on_with_what_was_left(store: MemoryStore) -> None:
    """One dies in the middle of a push, and another one, which only stood by, makes it.

    Fault injection: turns red when `lead` or `stand_by` changes nothing.
    """
    dying, standby = FakeReceiver(), FakeReceiver()
    dying.gate.clear()
    await write(store, 1)
    async with pushing(store, standby) as second:
        second.push.stand_by()
        async with pushing(store, dying):
            await dying.came.wait()
            await write(store, 2)
        assert ([1], []) == (dying.revisions, standby.revisions)
        second.push.lead()
        await second.until(SyncStatus.SYNCED, 1, 2)
    assert ([1, 2], 1) == (standby.revisions, standby.at_once)


async def test_an_outage_of_etcd_is_no_failure_of_the_push(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was pushed and could not be written down is pushed again; no try is counted for it."""
    receiver, refused = FakeReceiver(), asyncio.Event()

    async def refuse(*_: object) -> bool:
        monkeypatch.undo()
        refused.set()
        raise Unavailable("etcd is away")

    await write(store, 1)
    monkeypatch.setattr(store, "commit", refuse)
    async with pushing(store, receiver, tries=1) as work:
        await refused.wait()
        await work.until(SyncStatus.SYNCED, 1)
    assert [1, 1] == receiver.revisions


async def test_a_commit_that_vanishes_or_is_spoilt_stops_nobody(store: MemoryStore) -> None:
    """The oldest go when newer ones come, and somebody may write what is no record."""
    receiver = FakeReceiver()
    receiver.gate.clear()
    await write(store, 1, 2, 3)
    async with pushing(store, receiver) as work:
        await receiver.came.wait()
        await store.delete(keys.commit(M, Revision(1)))
        await store.put(keys.commit(M, Revision(2)), b"no record")
        receiver.gate.set()
        await work.until(SyncStatus.SYNCED, 3)
    assert [1, 3] == receiver.revisions


async def test_an_artifact_that_is_on_record_no_more_fails_the_push(store: MemoryStore) -> None:
    """Nothing is sent without its manifest."""
    receiver = FakeReceiver()
    await store.delete(keys.artifact(M, ARTIFACT))
    await write(store, 1)
    async with pushing(store, receiver) as work:
        [record] = await work.until(SyncStatus.FAILED, 1)
    assert record.registry_failure is not None
    assert ("ARTIFACT_UNKNOWN", []) == (record.registry_failure.reason, receiver.puts)
