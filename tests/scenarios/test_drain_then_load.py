"""A machine without room for two models: what serves goes before the next comes, by drain_then_load."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from services.cli import publish
from services.cli.console import CommandError
from services.cli.control_client import Means, Order
from services.cli.published import Published
from services.common.client import Client
from services.common.errors import CorruptData, Overloaded, Unavailable
from services.common.ids import ArtifactId
from services.common.memory_guard import Bound
from services.common.registry.publish_records import SwapMode
from services.engine import warm_up as warming
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.loaded_model import PreparedArtifact
from services.engine.loader_client import LoaderClient
from tests.scenarios.cluster import Cluster
from tests.scenarios.test_swapping import TICKETS, ask
from tests.scenarios.test_weights import weights_of_loader

Start = Callable[..., Any]


class SmallMachine(NamedTuple):
    """Its memory holds one model and a half."""

    limit_bytes: int
    others: frozenset[int]  # what this process held before

    def bounds(self) -> tuple[Bound, ...]:
        held = sum(size for inode, size in weights_held().items() if inode not in self.others)
        return (Bound("this host", self.limit_bytes, held),)

    def shared_bounds(self) -> tuple[Bound, ...]:
        return self.bounds()


def weights_held() -> dict[int, int]:
    """Bytes by inode: weights are in memory as long as they have a name there, or are mapped."""
    held = {(stat := path.stat()).st_ino: stat.st_size for path in weights_of_loader(os.getpid())}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if mapped := re.fullmatch(
            r"(\w+)-(\w+) .* (\d+) +/.*/[0-9a-f]{64}(?:\.[\w.-]+)?( \(deleted\))?", line
        ):
            held[int(mapped[3])] = int(mapped[2], 16) - int(mapped[1], 16)
    return held


async def replace(system: Cluster, artifact: Path, ratio: float | None = None) -> Published:
    """Publishes by drain_then_load, to fill at most such a part of the memory."""
    means = Means(SwapMode.DRAIN_THEN_LOAD, memory_guard_ratio=ratio)
    order = Order("m", "stable", "", "test", "test", means=means)
    return await publish.publish(
        system.gateway, order, artifact, str(system.store), reverify=False, wait_s=60
    )


@pytest.fixture
async def system(start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    size = (stories["stories-v1"] / "model.halogen").stat().st_size
    machine = SmallMachine(int(1.5 * size / 0.85), frozenset(weights_held()))
    monkeypatch.setattr("services.loader.serve.HostMemory", lambda: machine)
    made: Cluster = await start("in_process", loader={"keep_s": 0}, engine=TICKETS, scheduler=TICKETS)
    return made


async def test_a_machine_with_room_for_one_changes_its_model(
    system: Cluster, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what serves there is no room; drained first, there is. Meanwhile callers are told when to come back.

    Fault injection: turns red when `halogen publish` has what is to drain first verified in memory, or when an engine
    fetches before what it had is unmapped.
    """
    first = await system.publish("m", stories["stories-v1"])
    with pytest.raises(Overloaded, match="memory guard"):
        await system.publish("m", stories["stories-v2"])
    fetching, go_on, real = asyncio.Event(), asyncio.Event(), LoaderClient.prepare

    async def slow(loader: LoaderClient, artifact_id: ArtifactId) -> PreparedArtifact:
        fetching.set()
        await go_on.wait()
        return await real(loader, artifact_id)

    monkeypatch.setattr(LoaderClient, "prepare", slow)
    async with Client(system.gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
        assert first.artifact_id == (await ask(client))[0]
        replacing = group.create_task(replace(system, stories["stories-v2"]))
        await fetching.wait()
        with pytest.raises(Unavailable) as outage:
            await ask(client)
        assert "NO_ENGINE" == outage.value.reason
        assert outage.value.retry_after_s
        go_on.set()
        second = await replacing
        assert second.artifact_id == (await ask(client))[0]


async def test_what_was_let_go_comes_back_when_the_next_fails(
    system: Cluster, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers who wait are answered by what was committed last; to the log that is no swap.

    Fault injection: turns red when `MakingWay._is_withheld` always says yes, or `GenerationLoad._swap` does not compare.
    """
    first = await system.publish("m", stories["stories-v1"])

    async def warm_up(engine: Engine, generation: Generation, *more: Any) -> None:
        if generation.artifact_id != first.artifact_id:
            raise CorruptData("logits are not finite", reason="NOT_FINITE")
        await warming.warm_up(engine, generation, *more)

    monkeypatch.setattr("services.engine.generation_load.warm_up", warm_up)
    with capture_logs() as logs:
        with pytest.raises(CommandError, match="not finite"):
            await replace(system, stories["stories-v2"])
        async with system.client() as client:
            assert first.artifact_id == (await ask(client))[0]
    assert "atomic_swap_commit" not in {each["event"] for each in logs}


async def test_what_would_never_fit_lets_nothing_go(system: Cluster, stories: dict[str, Path]) -> None:
    """The share of the memory that the publish allows is less than the model alone takes: it fails, and no call does.

    Fault injection: turns red when `SuitableOnly.check` does not ask for memory, or `_loading_of` for the publish's share.
    """
    first = await system.publish("m", stories["stories-v1"])
    ending = asyncio.Event()

    async def go_on(client: Client) -> set[str]:
        answers = set()
        while not ending.is_set():
            answers.add((await ask(client))[0])
        return answers

    async with Client(system.gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
        asking = group.create_task(go_on(client))
        with pytest.raises(CommandError, match=r"memory guard: needs \d+ \+ holds 0 > 1e-06 x limit"):
            await replace(system, stories["stories-v2"], ratio=1e-6)
        ending.set()
    assert {first.artifact_id} == asking.result()
