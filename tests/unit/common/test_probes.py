"""What an orchestrator is told over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import Unavailable
from services.common.health_check import Checked
from services.common.metrics import fresh_registry
from services.common.probes import Probes
from services.common.readiness import Readiness
from services.common.registry.contact import RegistryContact
from services.common.rpc.address import Address
from services.common.rpc.server import RpcServer
from tests.scrape import get, scrape

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture
async def probes() -> AsyncIterator[tuple[Readiness, str]]:
    server = RpcServer(())
    registry = fresh_registry("engine", "build/1", server, RegistryContact())
    async with Probes(LOOPBACK, server.readiness, registry) as probes:
        yield server.readiness, str(probes.bound)


async def ask(address: str, path: str) -> tuple[int, Any]:
    status, body = await get(address, path)
    return status, json.loads(body)


async def test_a_process_that_starts_is_alive_and_neither_started_nor_ready(
    probes: tuple[Readiness, str],
) -> None:
    """The body says what is missing."""
    _, address = probes
    assert (503, {"started": False}) == await ask(address, "/startupz")
    assert (503, {"ready": False, "missing": "it is starting", "names": {}}) == await ask(address, "/readyz")
    assert (200, {"live": True}) == await ask(address, "/livez")


async def test_readyz_follows_readiness(probes: tuple[Readiness, str]) -> None:
    """Ready with all names, not ready for a reason, and not ready at the end; alive all the time."""
    readiness, address = probes
    readiness.start()
    readiness.set("", {"m@stable": True})
    assert (200, {"ready": True, "missing": "", "names": {"m@stable": True}}) == await ask(address, "/readyz")
    readiness.set("no generation is ACTIVE", {"m@stable": False})
    status, told = await ask(address, "/readyz")
    assert (503, "no generation is ACTIVE") == (status, told["missing"])
    readiness.end()
    statuses = [(await ask(address, path))[0] for path in ("/startupz", "/readyz", "/livez")]
    assert [200, 503, 200] == statuses


async def test_metrics_say_which_build_it_is_and_whether_it_is_ready(
    probes: tuple[Readiness, str],
) -> None:
    """Beside what the system knows of the process."""
    told = await scrape(probes[1])
    assert 0 == told.value("halogen_ready", role="engine")
    probes[0].set("")
    assert 1 == (await scrape(probes[1])).value("halogen_ready", role="engine")
    assert 1 == told.value("halogen_build_info", role="engine", build="build/1")
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= told.names


async def test_open_metrics_are_given_to_who_asks_for_them(probes: tuple[Readiness, str]) -> None:
    """Content follows the Accept header, as Prometheus sends it."""
    headers = {"Accept": "application/openmetrics-text;version=1.0.0"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{probes[1]}/metrics", headers=headers) as answer,
    ):
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await answer.text()).endswith("# EOF\n")


async def test_a_taken_port_is_said_in_words(probes: tuple[Readiness, str]) -> None:
    """The message names the flag."""
    with pytest.raises(Unavailable, match="--http-listen"):
        async with Probes(Address.parse(probes[1]), Readiness(), CollectorRegistry()):
            pass


async def test_a_check_is_asked_for_by_name() -> None:
    """Sound is 200, unsound 503; an unknown one is 400 and told which there are; without a name they are listed."""
    sound = True
    checks = {"checkpoint": lambda: Checked(sound, {"seq": 4})}
    async with Probes(LOOPBACK, Readiness(), CollectorRegistry(), checks) as probes:
        address = str(probes.bound)
        assert (200, {"seq": 4}) == await ask(address, "/healthz?check=checkpoint")
        sound = False
        assert (503, {"seq": 4}) == await ask(address, "/healthz?check=checkpoint")
        assert (200, {"status": "ok", "checks": ["checkpoint"]}) == await ask(address, "/healthz")
        status, told = await ask(address, "/healthz?check=etcd")
        assert (400, ["checkpoint"]) == (status, told["checks"])
