"""An engine that starts while the registry is away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.common.client import Client
from services.common.rpc.address import Address
from tests.scenarios.cluster import Cluster
from tests.scenarios.test_swapping import TICKETS, ask
from tests.scenarios.test_unpublishing import SERVING, health, until

Start = Callable[..., Any]


async def test_an_engine_starts_from_what_was_committed_last(
    start: Start, stories: dict[str, Path], tmp_path: Path
) -> None:
    """Without a word of the registry it has its model ACTIVE again, and answers; afterwards it follows the next publish.

    Fault injection: turns red when the manager waits for the registry whatever it remembers (it is never ready), or when
    schedulers take only the registry's word for a restart (NO_ENGINE).
    """
    settings = {
        **TICKETS,
        "recovery": {"start_from_cache": "last_committed", "state_dir": tmp_path / "state"},
    }
    system: Cluster = await start("in_process", engine=settings, scheduler=TICKETS)
    assert system.registry
    assert system.another
    await system.publish("m", stories["stories-v1"])
    async with Client(system.gateway, max_tries=100) as client, contextlib.AsyncExitStack() as scope:
        before = await ask(client)
        while not list(tmp_path.glob("state/*.json")):
            await ask(client)
        with system.registry.outage():
            await system.end("engine")
            at = Address.parse(system.engine)
            engine = await scope.enter_async_context(system.another("engine", listen=at))
            async with health(engine) as watch:
                await until(watch, SERVING)
            assert before == await ask(client)
        assert before == await ask(client)
        second = await system.publish("m", stories["stories-v2"])
        assert second.artifact_id == (await ask(client))[0]
