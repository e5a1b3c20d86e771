"""Loaders of one host share one directory: one read for all, and nothing lost or left when one is killed."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import Overloaded
from services.common.ids import ArtifactId
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.directory_place import DirectoryPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.loader.children import BLOCK, child_loader
from tests.unit.loader.disk import flip


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if not path.is_dir())


async def test_two_loaders_asked_at_once_read_the_source_once(stored: StoredArtifact, shm: Path) -> None:
    """Both answer with the one file.

    Fault injection: Commons.turn yields without waiting, and both read.
    """
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm) as first, child_loader(store, shm) as second:
        answers = await asyncio.gather(
            *(each.prepare(artifact_id) for each in (first, second) for _ in range(3))
        )
        assert 1 == len({answer.mapped_path for answer in answers})
        assert [artifact_id] == files_in(shm)
        content = stored.path(stored.manifest.weights).read_bytes()
        assert content == Path(answers[0].mapped_path).read_bytes()
        events = [*await first.end(), *await second.end()]
    assert (1, 1) == (events.count("checkpoint_read"), events.count("checkpoint_adopted"))


async def test_another_takes_over_from_a_loader_killed_in_the_middle_of_a_load(
    stored: StoredArtifact, shm: Path
) -> None:
    """kill -9 frees its turn: who waits for it begins anew, and nothing half-written stays.

    Fault injection: _end_of_holder in services/loader/turn.py watches the pipe that it has open for writing itself.
    """
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm, held_at=f"{BLOCK}=2") as first, child_loader(store, shm) as second:
        doomed = asyncio.create_task(first.prepare(artifact_id))
        await first.begun()
        waiting = asyncio.create_task(second.prepare(artifact_id))
        await second.heard("turn_awaited")
        await first.kill()
        answer = await waiting
        assert [artifact_id] == files_in(shm)
        assert stored.path(stored.manifest.weights).read_bytes() == Path(answer.mapped_path).read_bytes()
        assert ["checkpoint_read"] == [event for event in await second.end() if event == "checkpoint_read"]
        with pytest.raises(Exception, match=r"UNAVAILABLE|closed|reset"):
            await doomed


async def test_a_loader_started_anew_adopts_what_the_killed_one_left(
    stored: StoredArtifact, shm: Path
) -> None:
    """It verifies the memory and does not read the store: there, a block is damaged meanwhile.

    Fault injection: Preparations does not claim when it begins, and Commons.find finds nothing.
    """
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm) as first:
        before = await first.prepare(artifact_id)
        inode = Path(before.mapped_path).stat().st_ino
        await first.kill()
    content = Path(before.mapped_path).read_bytes()
    flip(stored.path(stored.manifest.weights), stored.manifest.weights.size_bytes - 1)
    async with child_loader(store, shm) as second:
        after = await second.prepare(artifact_id)
        assert (before.mapped_path, inode) == (after.mapped_path, Path(after.mapped_path).stat().st_ino)
        assert content == Path(after.mapped_path).read_bytes()
        events = await second.end()
    assert (0, 1) == (events.count("checkpoint_read"), events.count("checkpoint_adopted"))


async def test_what_a_killed_loader_left_stays_while_the_store_is_away(
    stored: StoredArtifact, shm: Path
) -> None:
    """As when it is mounted late: once it is back, the memory is taken over.

    Fault injection: Preparations does not leave a claim that came to nothing for now.
    """
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm) as first:
        left = Path((await first.prepare(artifact_id)).mapped_path)
        await first.kill()
    store.rename(store.with_name("away"))
    async with child_loader(store, shm) as second:
        await second.heard("checkpoint_refused")
        assert left.exists()
        store.with_name("away").rename(store)
        assert str(left) == (await second.prepare(artifact_id)).mapped_path
        events = await second.end()
    assert (0, 1) == (events.count("checkpoint_read"), events.count("checkpoint_adopted"))


async def test_a_damaged_leftover_is_read_anew(stored: StoredArtifact, shm: Path) -> None:
    """No byte is believed that no digest vouches for; whoever maps the damaged file keeps that.

    Fault injection: Adoption.run does not read the blocks.
    """
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm) as first:
        left = Path((await first.prepare(artifact_id)).mapped_path)
        await first.kill()
    left.chmod(0o644)
    flip(left, left.stat().st_size - 1)
    async with child_loader(store, shm) as second:
        answer = await second.prepare(artifact_id)
        assert stored.path(stored.manifest.weights).read_bytes() == Path(answer.mapped_path).read_bytes()
        events = await second.end()
    assert (1, 1) == (events.count("adoption_refused"), events.count("checkpoint_read"))


async def test_what_nobody_can_adopt_goes_when_the_next_loader_starts(
    stored: StoredArtifact, shm: Path
) -> None:
    """The store no longer has the artifact; whoever maps the file keeps its pages."""
    store, artifact_id = stored.directory.parent, stored.manifest.id
    async with child_loader(store, shm) as first:
        left = Path((await first.prepare(artifact_id)).mapped_path)
        descriptor = os.open(left, os.O_RDONLY)
        await first.kill()
    content = stored.path(stored.manifest.weights).read_bytes()
    stored.directory.rename(store / "elsewhere")
    async with child_loader(store, shm) as second:
        with pytest.raises(Exception, match="NOT_FOUND"):
            await second.prepare(artifact_id)
        assert [] == files_in(shm)
        await second.end()
    assert content == os.pread(descriptor, len(content), 0)
    os.close(descriptor)


async def test_who_ends_takes_only_what_nobody_else_counts_on(
    stored: StoredArtifact, shm: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    """One file is both loaders', one is the first's alone: when that one ends, only its own goes."""
    other, manifest = make_tiny_artifact(tmp_path)
    store.put(other)
    async with child_loader(store.root, shm) as first, child_loader(store.root, shm) as second:
        await first.prepare(manifest.id)
        await asyncio.gather(first.prepare(stored.manifest.id), second.prepare(stored.manifest.id))
        assert sorted([manifest.id, stored.manifest.id]) == files_in(shm)
        await first.end()
        assert [stored.manifest.id] == files_in(shm)
        await second.end()
    assert [] == list(shm.iterdir())


def room_for(size_bytes: int, directory: Path) -> Callable[[int, int, int], None]:
    """posix_fallocate on a file system of so many bytes."""

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if length + sum(path.stat().st_size for path in directory.iterdir()) > size_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(descriptor, offset, length)

    return allocate


async def prepare(preparations: Preparations, artifact_id: ArtifactId) -> None:
    async for _ in preparations.prepare(artifact_id):
        pass


async def test_what_one_loader_lets_rest_makes_room_for_another(
    store: ArtifactStore, shm: Path, tmp_path: Path
) -> None:
    """What nobody asks it for lately no loader keeps from the others; what it was just asked for it does.

    Fault injection: Residents.rest_idle does not let go of the holding.
    """
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for folder, _ in made:
        store.put(folder)
    (a, b), size_bytes = (manifest.id for _, manifest in made), made[0][1].weights.size_bytes
    directory = shm / "weights"

    def loader(keep_s: float) -> Preparations:
        allocate = room_for(size_bytes, directory)
        place = DirectoryPlace(PlaceKind.TMPFS, directory, allocate=allocate)
        metrics = LoaderMetrics(CollectorRegistry())
        artifacts, reading = ArtifactsInPlace(store), Reading(threads=1)
        return Preparations(artifacts, [place], reading=reading, keep_s=keep_s, metrics=metrics)

    async with loader(0) as forgetful, loader(300) as other:
        await prepare(forgetful, a)
        await prepare(other, b)
        assert [b] == files_in(shm)
        with pytest.raises(Overloaded, match="No space left"):
            await prepare(forgetful, a)
        await prepare(forgetful, b)
        assert [b] == files_in(shm)
