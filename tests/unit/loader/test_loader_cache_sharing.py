"""Loaders of one host and one HTTP store: one download for all, and none of it lost or left when one is killed."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.verified_artifact import read_header
from tests.unit.loader.children import child_loader
from tests.unit.loader.store_server import StoreServer

WEIGHTS = "model.halogen"
KILLS = 3
SEEDS = 2
HELD = "services.loader.block_download:BlockDownload:_verify_and_write=2"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"cache_dir": tmp_path / "cache", "store_connections": 1}


def left_in(settings: dict[str, Any]) -> list[str]:
    """Names of what is not finished."""
    files: Path = settings["cache_dir"] / "artifacts" / "files"
    return sorted(path.suffix for path in files.iterdir() if path.name.startswith("."))


async def test_two_loaders_asked_at_once_fetch_once(
    server: StoreServer, stored: StoredArtifact, shm: Path, settings: dict[str, Any]
) -> None:
    """Every byte comes over the wire once, and both answer with the one file in memory.

    Fault injection: CachedArtifacts.bring takes no turn.
    """
    artifact_id = stored.manifest.id
    async with (
        child_loader(server.url, shm, **settings) as first,
        child_loader(server.url, shm, **settings) as second,
    ):
        answers = await asyncio.gather(*(each.prepare(artifact_id) for each in (first, second)))
        assert 1 == len({answer.mapped_path for answer in answers})
        content = stored.path(stored.manifest.weights).read_bytes()
        assert content == Path(answers[0].mapped_path).read_bytes()
        await first.end()
        await second.end()
    assert stored.manifest.weights.size_bytes == server.sent_bytes[WEIGHTS]
    assert [] == left_in(settings)


async def test_a_download_cut_short_by_kill_9_goes_on(
    server: StoreServer, stored: StoredArtifact, shm: Path, settings: dict[str, Any]
) -> None:
    """Whoever comes next takes over what was verified, and asks for the rest alone.

    Fault injection: missing_blocks finds every block missing.
    """
    artifact_id, header = stored.manifest.id, read_header(stored)
    async with child_loader(server.url, shm, held_at=HELD, **settings) as first:
        doomed = asyncio.create_task(first.prepare(artifact_id))
        await first.begun()
        await first.kill()
        with pytest.raises(Exception, match=r"UNAVAILABLE|closed|reset"):
            await doomed
    assert [".partial", ".turn"] == left_in(settings)
    server.asked.clear()
    async with child_loader(server.url, shm, **settings) as second:
        answer = await second.prepare(artifact_id)
        assert stored.path(stored.manifest.weights).read_bytes() == Path(answer.mapped_path).read_bytes()
        await second.end()
    asked = [(each.begin, each.end) for each in server.asked_for(WEIGHTS)]
    assert [(0, 64), (header.data_offset + 2 * BLOCK_BYTES, header.file_bytes)] == asked
    assert [] == left_in(settings)


async def test_weights_in_memory_are_not_fetched_again(
    server: StoreServer, stored: StoredArtifact, shm: Path, settings: dict[str, Any]
) -> None:
    """A loader that starts again verifies what the killed one left there: cache and store may have lost the weights, and
    there need be no room for them in the cache.

    Fault injection: Loads gives Arrivals nothing to find.
    """
    artifact_id, weights = stored.manifest.id, stored.path(stored.manifest.weights)
    async with child_loader(server.url, shm, **settings) as first:
        before = await first.prepare(artifact_id)
        await first.kill()
    content = weights.read_bytes()
    shutil.rmtree(settings["cache_dir"])
    weights.unlink()
    async with child_loader(server.url, shm, cache_max_bytes=len(content) - 1, **settings) as second:
        after = await second.prepare(artifact_id)
        assert (before.mapped_path, content) == (after.mapped_path, Path(after.mapped_path).read_bytes())
        assert "checkpoint_adopted" in await second.end()
    assert len(content) == server.sent_bytes[WEIGHTS]


async def test_another_loader_goes_on_at_once_where_a_killed_one_was(
    server: StoreServer, stored: StoredArtifact, shm: Path, settings: dict[str, Any]
) -> None:
    """The one that waits for its turn has it when the holder dies."""
    artifact_id = stored.manifest.id
    async with (
        child_loader(server.url, shm, held_at=HELD, **settings) as first,
        child_loader(server.url, shm, **settings) as second,
    ):
        doomed = asyncio.create_task(first.prepare(artifact_id))
        await first.begun()
        waiting = asyncio.create_task(second.prepare(artifact_id))
        await second.heard("turn_awaited")
        await first.kill()
        answer = await waiting
        assert stored.path(stored.manifest.weights).read_bytes() == Path(answer.mapped_path).read_bytes()
        await second.end()
        with pytest.raises(Exception, match=r"UNAVAILABLE|closed|reset"):
            await doomed
    assert [] == left_in(settings)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_kills_at_any_moment_of_a_download_leave_nothing_wrong(
    server: StoreServer, stored: StoredArtifact, shm: Path, settings: dict[str, Any], seed: int
) -> None:
    """One loader after the other dies by kill -9, each after some bytes more; the next one has right weights.

    Fault injection: missing_blocks finds nothing missing.
    """
    artifact_id, rng = stored.manifest.id, random.Random(seed)
    for _ in range(KILLS):
        reached = asyncio.Event()
        more_bytes = rng.randrange(1, stored.manifest.weights.size_bytes // KILLS)
        server.alarms[WEIGHTS] = (server.sent_bytes[WEIGHTS] + more_bytes, reached)
        async with child_loader(server.url, shm, **settings) as doomed:
            call = asyncio.create_task(doomed.prepare(artifact_id))
            waiting = asyncio.create_task(reached.wait())
            await asyncio.wait({call, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await doomed.kill()
            await asyncio.wait({call})
            call.exception()
    async with child_loader(server.url, shm, **settings) as last:
        answer = await last.prepare(artifact_id)
        assert stored.path(stored.manifest.weights).read_bytes() == Path(answer.mapped_path).read_bytes()
        await last.end()
    assert [] == left_in(settings)
