"""Away from the control plane: what was verified serves on, and everybody says that it may be out of date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.store import Put
from tests.scenarios.cluster import Cluster
from tests.scenarios.test_probes_over_swaps import CHECK, places, told
from tests.scenarios.test_swapping import TICKETS, ask
from tests.scrape import scrape

Start = Callable[..., Any]
Fault = Callable[[MemoryStore], contextlib.AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def no_answer(registry: MemoryStore) -> AsyncIterator[None]:
    """The registry does not answer, for so long that it gives every process up."""
    with registry.outage():
        for lease in tuple(registry._leases):
            registry.expire(lease)
        yield


@contextlib.asynccontextmanager
async def nothing_there(registry: MemoryStore) -> AsyncIterator[None]:
    """The registry answers and has lost what was published; it is put back at the end."""
    lost = [
        entry for prefix in (keys.TARGETS, keys.SERVING) for entry in (await registry.list(prefix)).entries
    ]
    for entry in lost:
        await registry.delete(entry.key)
    yield
    await registry.commit((), [Put(entry.key, entry.value) for entry in lost])


async def until_stale(place: str) -> None:
    """Returns when it says so."""
    async with asyncio.timeout(30):
        while not (await told(place, CHECK))[1]["stale"]:
            pass


async def until_current(every: Iterable[str]) -> None:
    """Returns when all of them have the registry again."""
    async with asyncio.timeout(30):
        for place in every:
            while (await scrape(place)).value("halogen_registry_stale"):
                pass


@pytest.mark.parametrize("fault", [no_answer, nothing_there])
async def test_r_a15_a_registry_that_is_away_or_empty_unloads_nothing(
    start: Start, stories: dict[str, Path], fault: Fault
) -> None:
    """Answers stay bit for bit, the engine stays ready, and health, status and metrics say stale; a publish afterwards is
    served.

    Fault injection: turns red when views keep nothing of what vanishes, or when `RegistryContact` overlooks it.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    assert system.registry
    await system.publish("m", stories["stories-v1"])
    at = await places(system)
    async with system.client() as client, system.control() as control:
        before = await ask(client)
        every = [each.http_address for each in (await control.status(10)).processes]
        with capture_logs() as logs:
            async with fault(system.registry):
                for place in at.values():
                    await until_stale(place)
                    status, health = await told(place, CHECK)
                    assert (200, "degraded", "m") == (status, health["status"], health["active_model"])
                    assert 1 == (await scrape(place)).value("halogen_registry_stale")
                assert 200 == (await told(at["engine"], "/readyz"))[0]
                assert (await control.status(10)).is_stale
                assert before == await ask(client)
            await until_current(every)
        said = [entry["event"] for entry in logs if entry["event"] in {"registry_lost", "registry_regained"}]
        assert len(said) <= 8  # a loss and its end, of each of four processes
        second = await system.publish("m", stories["stories-v2"])
        assert second.artifact_id == (await ask(client))[0]
        assert not (await control.status(10)).is_stale


async def test_a_registry_restored_from_a_backup_takes_nothing_back(
    start: Start, stories: dict[str, Path]
) -> None:
    """What was served since the backup serves on, and all say stale until the next publish, which gets a revision of its own.

    Fault injection: turns red when `View._goes_back` always says no.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    assert system.registry
    first = await system.publish("m", stories["stories-v1"])
    prefixes = (keys.TARGETS, keys.SERVING, keys.REVISIONS)
    backup = [entry for prefix in prefixes for entry in (await system.registry.list(prefix)).entries]
    second = await system.publish("m", stories["stories-v2"])
    at = await places(system)
    async with system.client() as client, system.control() as control:
        before = await ask(client)
        await system.registry.commit((), [Put(entry.key, entry.value) for entry in backup])
        for place in at.values():
            await until_stale(place)
        assert before == await ask(client)
        third = await system.publish("m", stories["stories-v1"])
        assert (second.revision + 1, first.artifact_id) == (third.revision, (await ask(client))[0])
        assert not (await control.status(10)).is_stale
