"""A gateway whose watch has fallen silent at a swap: it answers, from what is served by now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.common.client import Client
from services.common.registry import keys
from services.common.registry.store import Changes, Snapshot, Store
from tests.scenarios.cluster import Cluster
from tests.scenarios.conftest import LONG_CONTEXT
from tests.scenarios.publishing import APPLIED, Operator, operator
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
SHORT = {"ticket_ttl_s": 0.2}
PROMPT = [3, 4, 5]


class SilentOnServing:
    """A registry whose watch of serving/ says nothing more while `heard` is not set; all else gets through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.heard = asyncio.Event()
        self.heard.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        async with contextlib.aclosing(self._store.watch(prefix)) as messages:
            async for message in messages:
                if prefix == keys.SERVING:
                    await self.heard.wait()
                yield message


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two tiny artifacts, of long contexts."""
    folder = tmp_path_factory.mktemp("pair")
    return [make_tiny_artifact(folder, LONG_CONTEXT, seed=seed)[0] for seed in (1, 2)]


async def answered(client: Client) -> tuple[str, int, tuple[int, ...]]:
    """Which artifact answered, by which revision, and what."""
    answer = await client.generate(PROMPT, max_tokens=8, ignore_eos=True, temperature=0).complete()
    assert answer.provenance is not None
    return answer.provenance.artifact_id, answer.provenance.revision, answer.token_ids


async def until_queued(system: Cluster) -> None:
    """Returns when a request waits for its ticket."""
    async with asyncio.timeout(30):
        while not (await system.occupancy()).queued_requests:
            pass


@contextlib.asynccontextmanager
async def long_answer(client: Client) -> AsyncIterator[None]:
    """One request that goes on and on while the scope lasts."""
    async with client.generate(PROMPT, max_tokens=30_000, ignore_eos=True) as stream:
        await anext(aiter(stream))
        yield


async def test_a_gateway_that_hears_late_of_a_swap_refuses_nobody(start: Start, pair: list[Path]) -> None:
    """Two gateways, one of them deaf: its requests, those that wait for a ticket too, are answered as the other's are.

    No try is made twice. Once it hears again it goes on with what is published then.

    Fault injection: turns red when `SchedulerClient` does not say what the request was routed by, `_no_engine` leaves out
    what is served, or `look_again` does not tell the catalog.
    """
    system: Cluster = await start(
        "in_process", engine={**SHORT, "max_concurrent_requests": 1}, scheduler=SHORT
    )
    assert system.another is not None
    assert system.registry is not None
    deaf = SilentOnServing(system.registry)
    async with (
        system.another("gateway", id="deaf", through=deaf) as place,
        Client(place, max_tries=1) as client,
        system.client() as other,
        system.control() as control,
    ):
        me = operator(system, control)
        first, second = await me.register(pair)
        await serve(me, first)
        assert (first, 1) == (await answered(client))[:2]
        deaf.heard.clear()
        async with asyncio.TaskGroup() as group, long_answer(other):
            waiting = group.create_task(answered(client))
            await until_queued(system)
            await serve(me, second)
        expected = await answered(other)
        assert (second, 2) == expected[:2]
        assert [expected] * 3 == [waiting.result(), await answered(client), await answered(client)]
        deaf.heard.set()
        await serve(me, first)
        assert (first, 3) == (await answered(client))[:2]


async def serve(me: Operator, artifact_id: str) -> None:
    assert APPLIED == (await me.end(await me.publish(artifact_id))).state
