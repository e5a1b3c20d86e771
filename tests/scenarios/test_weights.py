"""Weights are one file in memory: the loader writes it once, engines map it, nobody copies it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.console import CommandError
from services.cli.published import Published
from services.common.client import Client
from services.common.errors import Overloaded, Unavailable
from services.common.host_memory import HostMemory
from tests.fake_host import GROUPS, group, make_host
from tests.scenarios import cluster
from tests.scenarios.cluster import Cluster

STORY = "Once upon a time"
Start = Callable[..., Any]


def mappings(pid: int, inode: int) -> list[dict[str, int]]:
    """The smaps entries, in KiB, of a process's mappings of the file with that inode."""
    found: list[dict[str, int]] = []
    ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            permissions, _, _, number = line.split(maxsplit=5)[1:5]
            ours = int(number) == inode
            if ours:
                found.append({"writable": int("w" in permissions), "shared": int("s" in permissions)})
        elif ours and (size := re.fullmatch(r"(\w+):\s+(\d+) kB", line)):
            found[-1][size[1]] = int(size[2])
    return found


async def test_the_engine_uses_the_loaders_own_file(start: Start, three_blocks: Path) -> None:
    """The engine's mapping is of the loader's file: shared, read-only, resident, with no private page."""
    system: Cluster = await start("processes")
    await system.publish("m", three_blocks)
    async with system.client() as client:
        await client.generate([3, 4, 5], max_tokens=4, ignore_eos=True).complete()
    [weights] = weights_of_loader(system.pids()["loader"])
    inode, size = weights.stat().st_ino, weights.stat().st_size
    [mapping] = mappings(system.pids()["engine"], inode)
    print("smaps of the engine's weights, KiB:", mapping)
    shared = mapping["Shared_Clean"] + mapping["Shared_Dirty"]
    assert (0, 1) == (mapping["writable"], mapping["shared"])
    assert (0, 0, 0) == (mapping["Private_Clean"], mapping["Private_Dirty"], mapping["Anonymous"])
    assert size // 1024 - 4096 <= shared == mapping["Rss"]


async def test_a_loader_killed_and_replaced_leaves_running_streams_bit_identical(
    start: Start, stories: dict[str, Path]
) -> None:
    """kill -9 of the loader, and another artifact published by the one that takes its place, under load.

    Fault injection: Commons.claim truncates the files that it finds.
    """
    system: Cluster = await start("processes")
    await system.publish("m", stories["stories-v1"])
    ending = asyncio.Event()

    async def ask(client: Client) -> list[tuple[str, tuple[int, ...]]]:
        answers: list[tuple[str, tuple[int, ...]]] = []
        while not ending.is_set():
            answer = await client.generate(STORY, max_tokens=60, temperature=0, ignore_eos=True).complete()
            assert answer.provenance is not None
            answers.append((answer.provenance.artifact_id, answer.token_ids))
        return answers

    async with Client(system.gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
        quiet = await client.generate(STORY, max_tokens=60, temperature=0, ignore_eos=True).complete()
        asking = [group.create_task(ask(client)) for _ in range(4)]
        loader = system.pids()["loader"]
        os.kill(loader, signal.SIGKILL)
        published = await publish_until_taken(system, "m", stories["stories-v2"])
        ending.set()
    assert loader != system.pids()["loader"]
    answers = {answer for task in asking for answer in task.result()}
    assert [quiet.token_ids] == [tokens for artifact, tokens in answers if artifact != published.artifact_id]
    assert len(answers) <= 2


async def publish_until_taken(system: Cluster, model: str, artifact: Path) -> Published:
    """Publishes as soon as there is a loader again."""
    while True:
        with contextlib.suppress(Unavailable):
            return await system.publish(model, artifact)


async def test_r_a12_a_load_that_memory_cannot_bear_is_refused_and_the_old_revision_serves(
    start: Start, stories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of one and a half models: the second publish ends at once, with the arithmetic, not in a killed process.

    Fault injection: turns red when Room.reserve does not ask the memory guard.
    """
    size = (stories["stories-v1"] / "model.halogen").stat().st_size
    limit = int(1.5 * size / 0.85)
    memory = HostMemory(make_host(tmp_path / "host", "0::/\n", group("", str(limit), "0")))
    monkeypatch.setattr("services.loader.serve.HostMemory", lambda: memory)
    system: Cluster = await start("in_process")
    first = await system.publish("m", stories["stories-v1"])
    (memory.root / GROUPS / "memory.current").write_text(str(size))
    with pytest.raises(
        Overloaded, match=rf"needs \d+ \+ holds {size} > 0\.85 x limit {limit} bytes"
    ) as refused:
        await system.publish("m", stories["stories-v2"])
    assert "MEMORY_GUARD" == refused.value.reason
    async with system.client() as client:
        answer = await client.generate(STORY, max_tokens=4).complete()
    assert answer.provenance is not None
    assert (first.artifact_id, first.revision) == (answer.provenance.artifact_id, answer.provenance.revision)


async def test_r_a12_a_candidate_for_which_memory_is_short_only_now_fails_and_the_old_revision_serves(
    start: Start, stories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was room when it was registered, and there is none when it is published: FAILED by the guard, at once.

    Fault injection: turns red when `may_pass` lets a candidate wait for memory.
    """
    memory = HostMemory(make_host(tmp_path / "host", "0::/\n", group("", str(1 << 30), "0")))
    monkeypatch.setattr("services.engine.serve.HostMemory", lambda: memory)
    system: Cluster = await start("in_process")
    first = await system.publish("m", stories["stories-v1"])
    (memory.root / GROUPS / "memory.current").write_text(str(1 << 30))
    with pytest.raises(
        CommandError, match=rf"no engine can serve m: .*memory guard: needs \d+ \+ holds {1 << 30}"
    ):
        await system.publish("m", stories["stories-v2"])
    async with system.client() as client:
        answer = await client.generate(STORY, max_tokens=4).complete()
    assert answer.provenance is not None
    assert (first.artifact_id, first.revision) == (answer.provenance.artifact_id, answer.provenance.revision)


async def test_an_engine_can_map_the_stores_own_file(start: Start, stories: dict[str, Path]) -> None:
    """Where it is asked for: the same answer as from memory, no copy, and the status says how it is read."""
    answers = []
    for settings in ({}, {"read_mode": "mmap", "mmap_threshold": 0.5}):
        system: Cluster = await start("in_process", loader=settings)
        await system.publish("m", stories["stories-v1"])
        async with system.client() as client:
            answers.append((await client.generate(STORY, max_tokens=20, temperature=0).complete()).token_ids)
    assert answers[0] == answers[1]
    assert "mmap, as asked; auto reads directly where it can" == await reading(system)


async def reading(system: Cluster) -> str:
    """What the status says of the loader's reads, once it holds an artifact."""
    async with system.control() as control, contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            for process in status.processes:
                if process.role == "loader" and process.artifact_ids:
                    return process.reading
    raise AssertionError("a watch does not end")


async def test_nothing_stays_in_memory_when_the_system_ends(
    start: Start, three_blocks: Path, tmp_path: Path
) -> None:
    """Every directory that a loader made in shared memory goes with it."""
    async with cluster.processes(tmp_path, {}) as system:
        await system.publish("m", three_blocks)
        [weights] = weights_of_loader(system.pids()["loader"])
        assert weights.exists()
    assert not weights.exists()
    assert not weights.parent.exists()


def weights_of_loader(pid: int) -> list[Path]:
    """Files of weights below the directories that the loader owns, found through its open directory locks."""
    folders = {entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    return sorted(
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if path.stat().st_size > 1 << 20
    )


async def test_an_engine_without_memory_for_keys_and_values_says_so(
    start: Start, stories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arena is promised memory that it has not touched: weights beside it are refused before anybody is killed.

    Fault injection: turns red when neither SuitableOnly nor VerifiedWeights.build asks the guard.
    """
    memory = HostMemory(make_host(tmp_path / "host", "0::/\n", group("", str(70 << 20), "0")))
    monkeypatch.setattr("services.engine.serve.HostMemory", lambda: memory)
    system: Cluster = await start("in_process", engine={"kv_swap_bytes": 1 << 20})
    await system.publish("m", stories["stories-v1"], wait_s=0)
    assert re.search(
        rf"memory guard: needs {65 << 20} \+ holds 0 > 0\.85 x limit {70 << 20} bytes of the control group "
        rf"\(needed: {64 << 20} for keys and values, by --kv-arena-bytes, {1 << 20} for those of requests that are set back",
        await first_error(system),
    )


async def test_weights_do_not_count_in_an_engines_own_control_group(
    start: Start, stories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader's memory holds them: a limit that has room for keys and values, but not for weights too, will do.

    Fault injection: turns red when `serve` bounds both by HostMemory.bounds, or `shared_bounds` leaves no group out.
    """
    size = (stories["stories-v1"] / "model.halogen").stat().st_size
    limit = int(((64 << 20) + size / 2) / 0.85)
    memory = HostMemory(make_host(tmp_path / "host", "0::/\n", group("", str(limit), "0")))
    monkeypatch.setattr("services.engine.serve.HostMemory", lambda: memory)
    monkeypatch.setattr("services.engine.serve.NearbyWeights.has", lambda *_: False)  # as if yet to be read
    system: Cluster = await start("in_process", engine={"kv_swap_bytes": 0})
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client:
        assert 4 == len((await client.generate(STORY, max_tokens=4).complete()).token_ids)


async def first_error(system: Cluster) -> str:
    """What an engine says of the first generation that it cannot bring up."""
    async with system.control() as control, contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            for process in status.processes:
                for generation in process.generations:
                    if generation.error:
                        return generation.error
    return ""
