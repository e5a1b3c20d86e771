"""When a cohort moves on to its target."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from services.common.background import background
from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationRecord,
    GenerationState,
    Serving,
    Target,
)
from services.common.registry.view import View
from services.scheduler.serving import Move, moves_due
from services.scheduler.serving_writer import ServingWriter
from tests.unit.scheduler.builders import ARTIFACT, OTHER, engine_record, generation

TARGET_KEY = keys.target(ModelName("m"), Cohort.STABLE)
SERVING_KEY = keys.serving(ModelName("m"), Cohort.STABLE)


def target(revision: int = 1, artifact: ArtifactId | None = ARTIFACT) -> Target:
    return Target(revision=Revision(revision), artifact_id=artifact, who="w", why="y")


def standing(revision: int = 1, artifact: ArtifactId | None = ARTIFACT) -> Serving:
    return Serving(revision=Revision(revision), artifact_id=artifact)


def gateway(name: str = "g", *artifacts: ArtifactId) -> GatewayRecord:
    return GatewayRecord(
        id=ProcessId(name),
        instance_id=InstanceId(f"{name}-1"),
        address="x:1",
        host="h",
        start_time="2026-01-01T00:00:00+00:00",
        artifact_ids=artifacts,
    )


def due(
    *,
    wanted: Target | None = None,
    now: Serving | None = None,
    held: Sequence[GenerationRecord] = (generation(),),
    gateways: Sequence[GatewayRecord] = (gateway("g", ARTIFACT),),
) -> list[Move]:
    return moves_due(
        targets={TARGET_KEY: wanted or target()},
        serving={SERVING_KEY: now} if now else {},
        engines=[engine_record(generations=held)],
        gateways=gateways,
    )


def test_a_ready_target_is_served() -> None:
    """One engine and every gateway are ready: the cohort moves."""
    assert [Move(SERVING_KEY, standing())] == due()


def test_what_is_served_already_is_not_written_again() -> None:
    """Equal revisions leave nothing to do."""
    assert [] == due(now=standing())


def test_nothing_moves_to_an_older_revision() -> None:
    """A target that lags behind what is served, as seen through a late view, is passed over."""
    assert [] == due(wanted=target(1), now=standing(2, OTHER))


def test_what_is_unpublished_is_not_served_again_by_a_late_view() -> None:
    """Neither is the withdrawn target moved to, nor does the older one come back over the withdrawal."""
    assert [] == due(wanted=target(2, None), now=standing())
    assert [] == due(wanted=target(1), now=standing(2, None))


def test_what_is_published_after_a_withdrawal_is_served() -> None:
    """Under its higher revision."""
    held = [generation(revision=3)]
    assert [Move(SERVING_KEY, standing(3))] == due(wanted=target(3), now=standing(2, None), held=held)


def test_a_rollback_is_a_newer_revision() -> None:
    """An older artifact under a higher revision is served like any other."""
    held = [generation(ARTIFACT, revision=3)]
    assert [Move(SERVING_KEY, standing(3))] == due(wanted=target(3), now=standing(2, OTHER), held=held)


@pytest.mark.parametrize(
    "held",
    [
        [],
        [generation(state=GenerationState.WARMING)],
        [generation(state=GenerationState.FAILED)],
        [generation(OTHER)],
        [generation(revision=2)],
        [generation().model_copy(update={"cohort": Cohort.CANARY})],
        [generation().model_copy(update={"model": ModelName("other")})],
    ],
    ids=["nothing", "warming", "failed", "artifact", "revision", "cohort", "model"],
)
def test_without_an_engine_ready_for_exactly_it_nothing_moves(held: list[GenerationRecord]) -> None:
    """State, artifact, revision, cohort and model must all be the target's."""
    assert [] == due(held=held)


@pytest.mark.parametrize(
    "gateways",
    [[], [gateway("g")], [gateway("g", ARTIFACT), gateway("h", OTHER)]],
    ids=["none", "unready", "one of two"],
)
def test_until_every_gateway_is_ready_nothing_moves(gateways: list[GatewayRecord]) -> None:
    """At least one gateway, and all of them, must have the tokenizer."""
    assert [] == due(gateways=gateways)


def test_cohorts_move_on_their_own() -> None:
    """One cohort's unready target does not hold up another's."""
    canary = keys.target(ModelName("m"), Cohort.CANARY)
    moves = moves_due(
        targets={canary: target(2, OTHER), TARGET_KEY: target()},
        serving={},
        engines=[engine_record(generations=[generation()])],
        gateways=[gateway("g", ARTIFACT, OTHER)],
    )
    assert [SERVING_KEY] == [move.key for move in moves]


@contextlib.asynccontextmanager
async def writing(store: MemoryStore) -> AsyncIterator[View[Serving]]:
    """A writer at work on `store`, and what it has written."""
    async with (
        View(store, keys.TARGETS, Target) as targets,
        View(store, keys.SERVING, Serving) as serving,
        View(store, keys.ENGINES, EngineRecord) as engines,
        View(store, keys.GATEWAYS, GatewayRecord) as gateways,
    ):
        writer = ServingWriter(store, targets=targets, serving=serving, engines=engines, gateways=gateways)
        writer.lead()
        async with background(writer.follow()):
            yield serving


async def until(view: View[Serving], expected: Serving, key: str = SERVING_KEY) -> None:
    async with contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            if view.records.get(key) == expected:
                return


async def make_ready(store: MemoryStore, revision: int, artifact: ArtifactId = ARTIFACT) -> None:
    held = engine_record(generations=[generation(artifact, revision=revision)])
    await store.put(keys.engine(held.id), held.encode())
    ready = gateway("g", ARTIFACT, OTHER)
    await store.put(keys.gateway(ready.id), ready.encode())


async def test_the_writer_serves_each_target_once_it_is_ready() -> None:
    """First a target, then the next one, in whatever order facts arrive."""
    store = MemoryStore()
    async with writing(store) as serving:
        await store.put(TARGET_KEY, target(1).encode())
        await make_ready(store, 1)
        await until(serving, standing(1))
        await store.put(TARGET_KEY, target(2, OTHER).encode())
        await make_ready(store, 2, OTHER)
        await until(serving, standing(2, OTHER))


async def test_a_gateway_that_dies_holds_nobody_up_beyond_its_lease() -> None:
    """Its record, without the tokenizer, is waited for; with the end of its lease the cohort moves.

    Fault injection: with the gateways' view left out of ServingWriter._views, nothing notices its end.
    """
    store, canary = MemoryStore(), keys.target(ModelName("m"), Cohort.CANARY)
    both = [generation(), generation(OTHER, revision=2).model_copy(update={"cohort": Cohort.CANARY})]
    async with writing(store) as serving, store.lease(10) as lease:
        for record in (gateway("dead", OTHER), gateway("g", ARTIFACT, OTHER)):
            await store.put(
                keys.gateway(record.id), record.encode(), lease.id if record.id == "dead" else None
            )
        held = engine_record(generations=both)
        await store.put(keys.engine(held.id), held.encode())
        await store.put(TARGET_KEY, target(1).encode())
        await store.put(canary, target(2, OTHER).encode())
        await until(serving, standing(2, OTHER), keys.serving(ModelName("m"), Cohort.CANARY))
        assert SERVING_KEY not in serving.records
        store.expire(lease.id)
        await until(serving, standing(1))


async def test_the_writer_goes_on_after_an_outage() -> None:
    """What became due while the registry was away is written when it is back."""
    store = MemoryStore()
    await make_ready(store, 1)
    async with writing(store) as serving:
        await serving.synced()
        await store.put(TARGET_KEY, target(1).encode())
        with store.outage():
            await serving.synced()
        await until(serving, standing(1))


async def test_the_writer_trusts_the_store_over_its_view() -> None:
    """A newer revision that its view has not shown yet is not overwritten."""
    store = MemoryStore()
    await store.put(TARGET_KEY, target(1).encode())
    await store.put(SERVING_KEY, standing(5, OTHER).encode())
    await make_ready(store, 1)
    async with writing(store) as serving:
        await serving.synced()
        writer = ServingWriter(
            store,
            targets=View(store, keys.TARGETS, Target),
            serving=serving,
            engines=View(store, keys.ENGINES, EngineRecord),
            gateways=View(store, keys.GATEWAYS, GatewayRecord),
        )
        await writer._write(Move(SERVING_KEY, standing(1)))
        assert {SERVING_KEY: standing(5, OTHER)} == serving.records
    entry = await store.get(SERVING_KEY)
    assert entry is not None
    assert standing(5, OTHER) == Serving.decode(entry.value)


async def test_the_writer_replaces_what_is_no_record() -> None:
    """A value that nobody can read does not block its cohort for ever."""
    store = MemoryStore()
    await store.put(SERVING_KEY, b"not a record")
    await store.put(TARGET_KEY, target(1).encode())
    await make_ready(store, 1)
    async with writing(store) as serving:
        await until(serving, standing(1))
