"""A registry of models is told of every commit, and whatever becomes of that, nobody who is served notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli import history_command, push_command
from services.common.checkpoint import canonical
from services.common.checkpoint.artifact_store import ArtifactStore, read_manifest
from services.common.errors import NotFound
from tests.scenarios.cluster import Cluster, in_process
from tests.scenarios.publishing import APPLIED, Operator, operator, until_led
from tests.scenarios.test_swap_faults import always_ready
from tests.scenarios.test_swapping import TICKETS, ask
from tests.unit.loader.store_server import store_server
from tests.unit.scheduler.registry_server import RegistryServer, black_hole, registry_server

PENDING, SYNCED = pb.REGISTRY_SYNC_STATUS_PENDING, pb.REGISTRY_SYNC_STATUS_SYNCED
FAILED = pb.REGISTRY_SYNC_STATUS_FAILED
UNROUTABLE: Final = "http://192.0.2.1"  # of RFC 5737: nobody's
STEPS: Final = ("checkpoint_start", "graph_hash_match", "publish_applied")  # of a swap, in this order
Start = Callable[..., Any]


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    async with registry_server() as running:
        yield running


def scheduler(url: str, **settings: Any) -> dict[str, Any]:
    """Its settings."""
    return {**TICKETS, "registry": {"url": url, **settings}}


async def until(system: Cluster, status: pb.RegistrySyncStatus, revision: int) -> pb.CohortStatus:
    """The model's cohort, once it serves that revision, which stands so in the registry of models."""
    async with (
        asyncio.timeout(60),
        system.control() as control,
        contextlib.aclosing(control.watch()) as readings,
    ):
        async for reading in readings:
            for cohort in reading.cohorts:
                if (cohort.serving_revision, cohort.registry_sync_status) == (revision, status):
                    return cohort
    raise AssertionError


async def push(system: Cluster, revision: int = 0) -> pb.PushCommitResponse:
    """As `halogen push` does it."""
    request = pb.PushCommitRequest(model="m", revision=revision, who="test", why="test")
    return await push_command.follow(system.gateway, request, wait_s=60, patience_s=60)


async def test_what_is_served_is_pushed_and_may_be_pushed_again(
    start: Start, stories: dict[str, Path], server: RegistryServer
) -> None:
    """After its commit, with its manifest; asked for again, also of an older revision, it is the same document."""
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=scheduler(server.url))
    for revision, name in enumerate(("stories-v1", "stories-v2"), 1):
        await system.publish("m", stories[name])
        await until(system, SYNCED, revision)
    taken = dict(server.taken)
    assert ["/base/models/m/revisions/1", "/base/models/m/revisions/2"] == sorted(taken)
    told = json.loads(taken["/base/models/m/revisions/2"])
    manifest = read_manifest(stories["stories-v2"])
    assert (manifest.id, "stable", 2) == (told["artifact_id"], told["cohort"], told["revision"])
    assert canonical.decode(manifest.encode()) == told["manifest"]
    for revision, path in ((0, "/base/models/m/revisions/2"), (1, "/base/models/m/revisions/1")):
        server.taken.clear()
        assert SYNCED == (await push(system, revision)).registry_sync_status
        assert {path: taken[path]} == server.taken


async def test_what_is_to_be_pushed_by_hand_is_pushed_when_asked_for(
    start: Start, stories: dict[str, Path], server: RegistryServer
) -> None:
    """A commit alone tells nobody."""
    settings = scheduler(server.url, push="manual")
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=settings)
    await system.publish("m", stories["stories-v1"])
    async with system.control() as control:
        await until_led(control)
        cohort = await operator(system, control).cohort()
    assert (pb.REGISTRY_SYNC_STATUS_UNSPECIFIED, []) == (cohort.registry_sync_status, server.puts)
    assert (1, SYNCED) == ((done := await push(system)).revision, done.registry_sync_status)
    assert ["/base/models/m/revisions/1"] == [put.path for put in server.puts]


async def test_r_e11_a_push_that_fails_changes_nothing_that_is_served(
    start: Start, stories: dict[str, Path], server: RegistryServer
) -> None:
    """The stage after the commit: answers stay bit for bit, ready stays 200, and the status names stage and reason.

    Fault injection: turns red when `RegistryPush._note` leaves the failure out, or a push that fails ends its scheduler.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=scheduler(server.url))
    server.statuses = [403, 403]
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client:
        old = await ask(client)
        async with always_ready(system):
            await until(system, FAILED, 1)
            assert old == await ask(client)
            await system.publish("m", stories["stories-v2"])
            new = await ask(client)
            cohort = await until(system, FAILED, 2)
            assert new == await ask(client)
        failure = cohort.registry_failure
        assert (types_pb2.STAGE_PUSH, "PUSH_REFUSED") == (failure.stage, failure.reason)
        assert (2, pb.PUBLISH_STATE_APPLIED) == (cohort.desired_revision, cohort.desired_state)
        assert not cohort.HasField("last_error")
        await system.publish("m", stories["stories-v1"])
        assert old == await ask(client)
    await until(system, SYNCED, 3)
    async with system.control() as control:
        history = await operator(system, control).history()
    ended = [history_command._ended(entry) for entry in history]
    assert ["APPLIED, registry: failed"] * 2 + ["APPLIED, registry: synced"] == ended


@contextlib.asynccontextmanager
async def nowhere(kind: str) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """A scheduler's and a loader's settings: without a registry, and with one that no word ever comes from."""
    async with black_hole() as hole:
        url = {"no registry": "", "never answers": hole.url, "unroutable": UNROUTABLE}[kind]
        registry = {"url": url, "timeout_s": 60, "push_tries": 1000, "fallback_enabled": bool(url)}
        yield {"scheduler": {**TICKETS, "registry": registry}, "loader": {"registry": registry}}
        assert (kind == "never answers") == hole.reached.is_set()
        assert hole.connections <= 2  # one of each leader, and none of a loader


@pytest.mark.parametrize("kind", ["no registry", "never answers", "unroutable"])
async def test_a_black_holed_registry_changes_no_step(
    start: Start, stories: dict[str, Path], kind: str
) -> None:
    """Start-up and two swaps take the same steps in the same order, while the first push still waits for its answer.

    Those who replace all that serve start with it, too, and serve what was served.

    Fault injection: turns red when `pushing` says a word to the registry before it yields.
    """
    async with nowhere(kind) as settings:
        with capture_logs() as logs:
            system: Cluster = await start("in_process", engine=TICKETS, **settings)
            for name in ("stories-v1", "stories-v2"):
                await system.publish("m", stories[name])
        steps = [name for name, _ in groupby(each["event"] for each in logs if each["event"] in STEPS)]
        assert list(STEPS) * 2 == steps
        if kind != "no registry":
            await until(system, PENDING, 2)
        async with system.client() as client:
            before = await ask(client)
        await replaced(system, settings, before)


async def test_a_black_holed_registry_costs_no_time(stories: dict[str, Path], tmp_path: Path) -> None:
    """Start-up, two swaps, and a start in the place of all that serve: each as fast beside a registry that never answers.

    Generously: whoever waited for it would wait a minute (--registry.timeout-s) for each try. Fault injection: turns red when
    `pushing` says a word to the registry before it yields, or `RolloutWriter` waits for a push.
    """
    took: dict[str, list[float]] = {}
    for kind in ("no registry", "never answers"):
        times = took[kind] = [time.monotonic()]
        async with (
            nowhere(kind) as settings,
            in_process(tmp_path / kind, {"engine": TICKETS, **settings}) as system,
        ):
            times.append(time.monotonic())
            for name in ("stories-v1", "stories-v2"):
                await system.publish("m", stories[name])
                times.append(time.monotonic())
            async with system.client() as client:
                before = await ask(client)
            await replaced(system, settings, before)
            times.append(time.monotonic())
    without, beside = ([after - at for at, after in pairwise(times)] for times in took.values())
    for alone_s, beside_s in zip(without, beside, strict=True):
        assert beside_s < 3 * alone_s + 10, (without, beside)


async def replaced(system: Cluster, settings: dict[str, dict[str, Any]], before: object) -> None:
    """Ends loader, engine and scheduler, and asks those that came in their place."""
    assert system.another is not None
    async with contextlib.AsyncExitStack() as scope:
        loader = await scope.enter_async_context(system.another("loader", id="l2", **settings["loader"]))
        await scope.enter_async_context(system.another("engine", id="e2", loader=loader, **TICKETS))
        await scope.enter_async_context(system.another("scheduler", id="s2", **settings["scheduler"]))
        for role in ("scheduler", "engine", "loader"):
            await system.end(role)
        async with system.client() as client:
            assert before == await ask(client)


async def test_an_artifact_that_only_the_registry_has_is_served_from_there(
    start: Start, stories: dict[str, Path], tmp_path: Path
) -> None:
    """Refused while it is yet to come, and published by its id once it has."""
    below = tmp_path / "registry" / "artifacts"
    below.mkdir(parents=True)
    artifact_id = ArtifactStore(below).put(stories["stories-v1"])
    async with store_server(tmp_path / "registry") as server:
        registry = {"url": server.url, "fallback_enabled": True}
        system: Cluster = await start("in_process", loader={"registry": registry})
        async with asyncio.timeout(60), system.control() as control, system.client() as client:
            me = operator(system, control)
            with pytest.raises(NotFound, match="the registry is asked for it"):
                await me.register_by_id(artifact_id)
            while not await is_there(me, artifact_id):
                pass
            assert APPLIED == (await me.end(await me.publish(artifact_id))).state
            assert artifact_id == (await ask(client))[0]


async def is_there(me: Operator, artifact_id: str) -> bool:
    """Whether it could be registered."""
    try:
        await me.register_by_id(artifact_id)
    except NotFound:
        return False
    return True
