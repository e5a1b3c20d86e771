"""kill -9 of a loader at any point while it packs weights: no file that is half made is ever taken."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import grpc
import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.derived_files import derived_name
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32
from tests.unit.loader.children import BLOCK, child_loader

CACHE: Final = "services.common.checkpoint.cache_directory:CacheDirectory"
POINTS: Final = (  # in the order in which a load reaches them
    f"{CACHE}:hold_derived",
    f"{CACHE}:reserve_derived",
    "services.loader.weight_packing:WeightPacking:run",
    f"{BLOCK}=2",
    "services.loader.weight_packing:WeightPacking:_digested",
    f"{CACHE}:publish_derived",
    "services.common.checkpoint.partial_file:PartialFile:finish",
    "services.common.checkpoint.partial_file:PartialFile:discard",
    "services.loader.intake:Intake:read",
)
MADE: Final = frozenset(POINTS[-2:])  # by then the file has its name


@pytest.mark.parametrize("point", POINTS)
async def test_a_loader_killed_at_any_point_of_packing(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path, point: str
) -> None:
    """What has the file's name is whole; the next loader serves it packed, and clears away what was left.

    Fault injection: turns red when reserve_derived makes the file under its own name, or a sweep leaves what is half made.
    """
    async with child_loader(store.root, shm, held_at=point, cache_dir=cache_dir) as loader:
        asked = asyncio.create_task(loader.prepare(stored.manifest.id, PACKED32))
        await loader.begun()
        await loader.kill()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await asked
    assert (point in MADE) == on_disk(cache_dir, stored).exists()
    async with child_loader(store.root, shm, cache_dir=cache_dir) as loader:
        prepared = await loader.prepare(stored.manifest.id, PACKED32)
        content = Path(prepared.mapped_path).read_bytes()
        assert content == on_disk(cache_dir, stored).read_bytes()
        header = Header.decode(content)
        assert header.derived is not None
        assert (prepared.identity, stored.manifest.weights.sha256) == (header.identity, header.derived.source)
        events = await loader.end()
    assert (point in MADE) == ("checkpoint_derived" not in events)
    assert [on_disk(cache_dir, stored).name] == [
        path.name for path in cache_dir.rglob("*") if not path.is_dir() and path.name != "lock"
    ]


async def test_what_a_killed_loader_left_packed_is_taken_over(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """By the next one, at its start: an engine may map it. Nothing of it is read from a disk.

    Fault injection: turns red when Commons.claim takes whole artifacts as they are stored alone.
    """
    async with child_loader(store.root, shm, cache_dir=cache_dir) as loader:
        first = await loader.prepare(stored.manifest.id, PACKED32)
        await loader.kill()
    async with child_loader(store.root, shm, cache_dir=cache_dir) as loader:
        await loader.heard("checkpoint_adopted")
        assert first == await loader.prepare(stored.manifest.id, PACKED32)
        events = await loader.end()
    assert not {"checkpoint_read", "checkpoint_derived"} & set(events)


def on_disk(cache_dir: Path, stored: StoredArtifact) -> Path:
    return cache_dir / "artifacts" / "derived" / derived_name(stored.manifest.id, PACKED32)
