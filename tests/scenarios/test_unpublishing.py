"""A model that is served no more: refused at once, unloaded when its last request has ended, and nobody is ready."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli import unpublish
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.common.errors import CorruptData, NotFound
from services.common.rpc.client import connect
from services.engine.loaded_model import ModelLoading
from tests.scenarios.cluster import Cluster

STORY = "Once upon a time"
Start = Callable[..., Any]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
WITHDRAW = Order("m", "stable", "", who="test", why="test")


@contextlib.asynccontextmanager
async def health(address: str) -> AsyncIterator[Any]:
    """The health of a whole process, as it changes."""
    async with connect(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=120)
        try:
            yield watch
        finally:
            watch.cancel()


async def until(watch: Any, status: int) -> None:
    async for response in watch:
        if response.status == status:
            return


async def test_r_e2_with_its_only_model_unloaded_nobody_is_ready(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Gateway and engine say NOT_SERVING, the model is NOT_FOUND, and both answer on; published again it is served.

    Fault injection: Generations.missing says true for good once a generation has been active.
    """
    system: Cluster = await start(driver, engine={"ticket_ttl_s": 0.2})
    await system.publish("m", stories["stories-v1"])
    async with health(system.gateway) as gateway, health(system.engine) as engine, system.client() as client:
        await until(gateway, SERVING)
        await until(engine, SERVING)
        assert 2 == await unpublish.unpublish(system.gateway, WITHDRAW, wait_s=60)
        await until(gateway, NOT_SERVING)
        await until(engine, NOT_SERVING)
        with pytest.raises(NotFound):
            await client.generate(STORY, model="m").complete()
        assert [] == await client.list_models()
        async with system.control() as control:
            status = await control.status(timeout_s=10)
        assert [(2, "", "")] == [
            (cohort.desired_revision, cohort.desired_artifact_id, cohort.serving_artifact_id)
            for cohort in status.cohorts
        ]
        assert [()] == [tuple(each.generations) for each in status.processes if each.role == "engine"]
        assert 3 == (await system.publish("m", stories["stories-v1"])).revision
        await until(gateway, SERVING)
        await until(engine, SERVING)
        assert 4 == len((await client.generate(STORY, max_tokens=4, ignore_eos=True).complete()).token_ids)


async def test_what_runs_when_its_model_is_unpublished_finishes(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Not a token is lost or changed; only then does the engine let the weights go."""
    system: Cluster = await start(driver, engine={"ticket_ttl_s": 0.2})
    await system.publish("m", stories["stories-v1"])
    options: Any = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}
    async with system.client() as client:
        quiet = await client.generate(STORY, **options).complete()
        async with client.generate(STORY, **options) as stream:
            chunks = [await anext(aiter(stream))]
            assert 2 == await unpublish.unpublish(system.gateway, WITHDRAW, wait_s=0)
            chunks += [chunk async for chunk in stream]
        assert quiet.token_ids == tuple(token for chunk in chunks for token in chunk.token_ids)
        with pytest.raises(NotFound):
            await client.generate(STORY, model="m").complete()


async def test_what_is_not_published_cannot_be_unpublished(start: Start) -> None:
    """One line that says so."""
    system: Cluster = await start("in_process")
    with pytest.raises(NotFound, match="m@stable is not published"):
        await unpublish.unpublish(system.gateway, WITHDRAW, wait_s=60)


async def test_r_e4_without_a_model_nobody_is_ever_ready(start: Start, driver: str) -> None:
    """Zero generations are not "all of them ready": what is told first, and while all four have found each other.

    Fault injection: Generations.missing says all(...) instead of any(...).
    """
    system: Cluster = await start(driver)
    async with system.control() as control, contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            if 4 == len(status.processes):
                break
    for address in (system.engine, system.gateway):
        assert NOT_SERVING == await ready(address)


async def test_r_e4_with_a_model_that_fails_to_load_nobody_is_ever_ready(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation stands as FAILED, with its reason, and readiness does not take it for one that serves.

    Fault injection: Generations.missing is empty whatever is held.
    """

    def fail(*_: object) -> None:
        raise CorruptData("block 3 is torn")

    monkeypatch.setattr(ModelLoading, "verify", fail)
    system: Cluster = await start("in_process")
    async with health(system.engine) as engine, health(system.gateway) as gateway:
        with pytest.raises(CommandError, match="no engine can serve m: block 3 is torn"):
            await system.publish("m", stories["stories-v1"])
        assert [NOT_SERVING] * 2 == [(await anext(aiter(watch))).status for watch in (engine, gateway)]
    for address in (system.engine, system.gateway):
        assert NOT_SERVING == await ready(address)


async def ready(address: str) -> int:
    async with connect(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    status: int = answer.status
    return status
