"""Where weights go, and what makes room for them or is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import (
    Overloaded,
)
from services.common.memory_guard import Bound, MemoryGuard
from services.engine.mapping import map_file
from services.loader.directory_place import DirectoryPlace, FileSlot
from services.loader.memfd_place import MemfdPlace
from services.loader.place import Place, PlaceKind
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.loader.disk import open_descriptors
from tests.unit.loader.preparing import Clock, files_in, open_preparations, prepare


class RefusedMemfd(MemfdPlace):
    """Of a kernel that has none."""

    def reserve(self, name: str, size_bytes: int) -> NoReturn:
        raise OSError(errno.ENOSYS, "no memfd here")


async def test_the_first_place_with_room_is_taken(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, tmp_path: Path
) -> None:
    """tmpfs not there, /dev/shm too small, no anonymous memory: an ordinary file, and the reasons are told."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    places: list[Place] = [
        DirectoryPlace(PlaceKind.TMPFS, tmp_path / "absent" / "weights"),
        DirectoryPlace(PlaceKind.DEV_SHM, shm / "weights", allocate=full),
        RefusedMemfd(),
        DirectoryPlace(PlaceKind.FILE, tmp_path / "cache" / "weights"),
    ]
    async with open_preparations(store, *places) as opened:
        _, prepared = await prepare(opened, stored.manifest.id)
        assert PlaceKind.FILE is prepared.holding.kind
        content = Path(prepared.holding.mapped_path).read_bytes()
        assert stored.path(stored.manifest.weights).read_bytes() == content
        for reason in ("file, no huge pages", "no such directory", "No space left", "no memfd here"):
            assert reason in opened.placement
    assert [] == files_in(tmp_path / "cache")


async def test_pages_that_cannot_be_had_are_a_refusal(
    store: ArtifactStore, stored: StoredArtifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory promised and then not there sends the weights to the next place, not to a SIGBUS."""

    def populate(*_: object) -> None:
        raise OSError(errno.ENOMEM, "not enough memory for all pages")

    monkeypatch.setattr("services.loader.shared_mapping.SharedMapping.populate", populate)
    before = open_descriptors()
    async with open_preparations(
        store, MemfdPlace(), DirectoryPlace(PlaceKind.FILE, tmp_path / "c" / "weights")
    ) as opened:
        _, prepared = await prepare(opened, stored.manifest.id)
        assert PlaceKind.FILE is prepared.holding.kind
    assert set() == open_descriptors() - before


class SmallPlace(DirectoryPlace):
    """Holds so many bytes."""

    def __init__(self, parent: Path, room_bytes: int) -> None:
        super().__init__(PlaceKind.TMPFS, parent / "weights")
        self._room_bytes = room_bytes

    def reserve(self, name: str, size_bytes: int) -> FileSlot:
        used_bytes = sum(path.stat().st_size for path in files_in(self.directory))
        if used_bytes + size_bytes > self._room_bytes:
            raise OSError(errno.ENOSPC, f"{self._room_bytes - used_bytes} bytes free")
        return super().reserve(name, size_bytes)


async def test_old_artifacts_make_room_for_new_ones(tmp_path: Path, store: ArtifactStore, shm: Path) -> None:
    """The one asked for longest ago goes first; one asked for lately never, and then there is no room."""
    manifests = []
    for seed in range(4):
        directory, manifest = make_tiny_artifact(tmp_path, seed=seed)
        store.put(directory)
        manifests.append(manifest)
    a, b, c, d = (manifest.id for manifest in manifests)
    size = manifests[0].weights.size_bytes
    clock = Clock()
    place = SmallPlace(shm, 2 * size)
    async with open_preparations(store, place, keep_s=10.0, clock=clock) as opened:
        _, first = await prepare(opened, a)
        descriptor = os.open(first.holding.mapped_path, os.O_RDONLY)  # an engine that still uses it
        clock.now_s = 1.0
        await prepare(opened, b)
        clock.now_s = 8.0
        with pytest.raises(
            Overloaded, match=f"{size} bytes .*0 bytes free, {2 * size} bytes held"
        ) as failure:
            await prepare(opened, c)
        assert failure.value.retry_after_s
        await prepare(opened, b)
        clock.now_s = 12.0
        await prepare(opened, c)
        assert tuple(sorted((b, c))) == opened.artifact_ids
        with pytest.raises(Overloaded):
            await prepare(opened, d)
        assert size == len(os.pread(descriptor, size, 0)), "whoever holds it keeps its pages"
        os.close(descriptor)


def guard_of(limit_bytes: int, directory: Path) -> MemoryGuard:
    """Over memory of which the files below `directory` take some."""

    def read() -> list[Bound]:
        return [
            Bound("the control group", limit_bytes, sum(path.stat().st_size for path in files_in(directory)))
        ]

    return MemoryGuard(0.85, read)


async def test_a_load_that_would_pass_the_memory_guard_is_refused_before_it_starts(
    tmp_path: Path, store: ArtifactStore, shm: Path
) -> None:
    """What is idle goes first; what was asked for lately stays, and the arithmetic is in the message.

    Fault injection: turns red when Room.reserve does not ask the guard, or asks it after a place.
    """
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for directory, _ in made:
        store.put(directory)
    (a, b), size = (manifest.id for _, manifest in made), made[0][1].weights.size_bytes
    limit, clock = int(1.5 * size / 0.85), Clock()
    place = DirectoryPlace(PlaceKind.TMPFS, shm / "weights")
    fallback = DirectoryPlace(PlaceKind.FILE, tmp_path / "cache" / "weights")
    async with open_preparations(store, place, fallback, clock=clock, guard=guard_of(limit, shm)) as opened:
        await prepare(opened, a)
        arithmetic = rf"needs {size} \+ holds {size} > 0\.85 x limit {limit} bytes of the control group"
        with pytest.raises(Overloaded, match=arithmetic) as refused:
            await prepare(opened, b)
        assert "MEMORY_GUARD" == refused.value.reason
        assert (a,) == opened.artifact_ids
        clock.now_s = 20.0
        await prepare(opened, b)
        assert (b,) == opened.artifact_ids


async def test_a_file_on_a_disk_needs_no_memory(
    tmp_path: Path, store: ArtifactStore, stored: StoredArtifact
) -> None:
    """Where it is the only place that the operator wants: the kernel may drop its pages."""
    place = DirectoryPlace(PlaceKind.FILE, tmp_path / "cache" / "weights")
    async with open_preparations(store, place, guard=guard_of(1, tmp_path)) as opened:
        _, prepared = await prepare(opened, stored.manifest.id)
        assert PlaceKind.FILE is prepared.holding.kind


async def test_what_an_engine_has_mapped_is_not_taken_for_its_room(
    tmp_path: Path, store: ArtifactStore, shm: Path
) -> None:
    """To unlink it would free nothing, and the next engine could not share it.

    Fault injection: turns red when map_file in the engine takes no lock.
    """
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for directory, _ in made:
        store.put(directory)
    (a, b), size = (manifest.id for _, manifest in made), made[0][1].weights.size_bytes
    clock, place = Clock(), DirectoryPlace(PlaceKind.TMPFS, shm / "weights")
    async with open_preparations(store, place, clock=clock, guard=guard_of(2 * size, shm)) as opened:
        _, first = await prepare(opened, a)
        in_use = map_file(Path(first.holding.mapped_path))
        clock.now_s = 20.0
        with pytest.raises(Overloaded, match="the load would pass the memory guard"):
            await prepare(opened, b)
        assert Path(first.holding.mapped_path).exists()
        _, again = await prepare(opened, a)
        assert first.holding.mapped_path == again.holding.mapped_path
        del in_use
        clock.now_s = 40.0
        await prepare(opened, b)
        assert (b,) == opened.artifact_ids
