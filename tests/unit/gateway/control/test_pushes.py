"""What operators ask the registry of models to be told."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from services.common.errors import HalogenError, InvalidRequest, NotFound, Unavailable, Unsupported
from services.common.ids import Cohort, InstanceId, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord, Failure, Stage, SyncStatus
from services.common.registry.records import SchedulerRecord
from services.gateway.pushes import Pushed, Pushes, PushOrder
from tests.unit.gateway.control.builders import MODEL, CutStore, manifest, read

LEADER = SchedulerRecord(
    id=ProcessId("s"),
    instance_id=InstanceId("s-1"),
    address="x:1",
    host="h",
    start_time="2026-01-01T00:00:00+00:00",
    term=1,
    pushes=True,
)
ORDER = PushOrder(MODEL, None, who="ada", why="test")
FAILURE = Failure(stage=Stage.PUSH, reason="PUSH_REFUSED", message="no")
COMMIT = CommitRecord(
    time="now",
    cohort=Cohort.STABLE,
    artifact_id=manifest("a").id,
    ready=(),
    registry_sync_status=SyncStatus.FAILED,
    registry_failure=FAILURE,
)


async def commit(store: CutStore, *revisions: int) -> None:
    for revision in revisions:
        await store.put(keys.commit(MODEL, Revision(revision)), COMMIT.encode())


async def first(store: CutStore, order: PushOrder) -> Pushed:
    async with contextlib.aclosing(Pushes(store, lambda: LEADER).push(order)) as steps:
        return await anext(steps)


@pytest.mark.parametrize(("revision", "expected"), [(None, 10), (2, 2)])
async def test_a_push_is_asked_for_on_the_commits_record(
    store: CutStore, revision: int | None, expected: int
) -> None:
    """Of the revision that is named, or the last; with who and why, in one write, and without the failure before."""
    await commit(store, 2, 10)
    pushed = await first(store, ORDER._replace(revision=None if revision is None else Revision(revision)))
    asked = COMMIT.asked("ada", "test")
    assert Pushed(Revision(expected), asked) == pushed
    assert asked == await read(store, keys.commit(MODEL, Revision(expected)), CommitRecord.decode)
    assert (None, SyncStatus.PENDING) == (asked.registry_failure, asked.registry_sync_status)


async def test_a_push_is_followed_to_its_end(store: CutStore) -> None:
    """Its failure too."""
    await commit(store, 1)
    seen = []
    async with contextlib.aclosing(Pushes(store, lambda: LEADER).push(ORDER)) as steps:
        async for step in steps:
            seen.append(step.record.registry_sync_status)
            if len(seen) == 1:
                await store.put(keys.commit(MODEL, Revision(1)), step.record.pushed(FAILURE).encode())
    assert [SyncStatus.PENDING, SyncStatus.FAILED] == seen


@pytest.mark.parametrize(
    ("leader", "changes", "expected"),
    [
        (LEADER, {"model": "NO such"}, InvalidRequest),
        (LEADER, {"why": " "}, InvalidRequest),
        (None, {}, Unavailable),
        (LEADER.model_copy(update={"pushes": False}), {}, Unsupported),
        (LEADER, {"revision": 3}, NotFound),
        (LEADER, {"model": "other"}, NotFound),
    ],
)
async def test_what_cannot_be_pushed_is_refused(
    store: CutStore, leader: SchedulerRecord | None, changes: dict[str, Any], expected: type[HalogenError]
) -> None:
    """And changes nothing."""
    await commit(store, 1)
    async with contextlib.aclosing(Pushes(store, lambda: leader).push(ORDER._replace(**changes))) as steps:
        with pytest.raises(expected):
            await anext(steps)
    assert COMMIT == await read(store, keys.commit(MODEL, Revision(1)), CommitRecord.decode)
