"""Preparations: one read however many ask, every byte verified, no memory left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.header import Header
from services.common.errors import (
    CorruptData,
    HalogenError,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
)
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.engine.mapping import map_file
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.block_reader import BlockReader
from services.loader.directory_place import DirectoryPlace, FileSlot
from services.loader.flight import Done
from services.loader.memfd_place import MemfdPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import Place, PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared
from services.loader.weight_file import ReadMode
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact
from tests.unit.checkpoint.forged_artifact import LIES, make_forged_artifact
from tests.unit.checkpoint.scaled_artifact import make_scaled_artifact
from tests.unit.loader.disk import flip, open_descriptors


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


TWO_THREADS = Reading(threads=2)


def open_preparations(
    store: ArtifactStore,
    *places: Place,
    keep_s: float = 10.0,
    clock: Clock | None = None,
    guard: MemoryGuard = UNGUARDED,
    reading: Reading = TWO_THREADS,
) -> Preparations:
    return Preparations(
        ArtifactsInPlace(store),
        places,
        reading=reading,
        keep_s=keep_s,
        metrics=LoaderMetrics(CollectorRegistry()),
        guard=guard,
        clock_s=clock or Clock(),
    )


@pytest.fixture
async def preparations(store: ArtifactStore, shm: Path) -> AsyncIterator[Preparations]:
    async with open_preparations(store, DirectoryPlace(PlaceKind.TMPFS, shm / "weights")) as opened:
        yield opened


async def prepare(preparations: Preparations, artifact_id: ArtifactId) -> tuple[list[Done], Prepared]:
    """All the progress, and what came of it."""
    steps = [step async for step in preparations.prepare(artifact_id)]
    result = steps.pop()
    assert isinstance(result, Prepared)
    return [step for step in steps if isinstance(step, Done)], result


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def test_an_artifact_is_read_verified_and_placed(
    preparations: Preparations, stored: StoredArtifact, shm: Path
) -> None:
    """What an engine maps is the weight file, byte for byte; the progress rises to all of the artifact."""
    progress, prepared = await prepare(preparations, stored.manifest.id)
    weights = stored.manifest.weights
    assert stored.path(weights).read_bytes() == Path(prepared.holding.mapped_path).read_bytes()
    assert (weights.sha256, weights.path, PlaceKind.TMPFS) == (
        prepared.identity,
        prepared.path,
        prepared.holding.kind,
    )
    assert sorted(progress) == progress
    assert (stored.manifest.id,) == preparations.artifact_ids
    assert 0o444 == Path(prepared.holding.mapped_path).stat().st_mode & 0o777
    assert preparations.placement.startswith("tmpfs, ")


async def test_a_second_caller_is_answered_at_once(
    preparations: Preparations, stored: StoredArtifact
) -> None:
    """No second read: the store could even be gone."""
    _, first = await prepare(preparations, stored.manifest.id)
    for path in stored.directory.iterdir():
        path.unlink()
    progress, second = await prepare(preparations, stored.manifest.id)
    assert ([], first) == (progress, second)


class GatedReads:
    """Holds every read until the test opens the gate; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()
        self.count = 0
        original = BlockReader.read_into

        def read_into(*arguments: object) -> None:
            self.count += 1
            self.started.set()
            assert self.gate.wait(60)
            original(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockReader, "read_into", read_into)

    async def wait_started(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 60)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedReads]:
    gated = GatedReads(monkeypatch)
    yield gated
    gated.gate.set()


async def test_many_callers_share_one_read(
    preparations: Preparations, stored: StoredArtifact, reads: GatedReads
) -> None:
    """Everybody hears the progress and gets the same file."""
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(prepare(preparations, stored.manifest.id)) for _ in range(8)]
        await reads.wait_started()
        reads.gate.set()
    outcomes = [caller.result() for caller in callers]
    assert 1 == reads.count
    assert 1 == len({prepared.holding.mapped_path for _, prepared in outcomes})
    assert all(progress for progress, _ in outcomes)


async def test_a_caller_who_leaves_stops_nobody(
    preparations: Preparations, stored: StoredArtifact, reads: GatedReads
) -> None:
    """The first caller's cancel does not fail the second; nor does it undo the work."""
    first = asyncio.create_task(prepare(preparations, stored.manifest.id))
    await reads.wait_started()
    second = asyncio.create_task(prepare(preparations, stored.manifest.id))
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    reads.gate.set()
    _, prepared = await second
    assert stored.manifest.id == prepared.artifact_id
    assert 1 == reads.count


async def test_the_last_caller_to_leave_lets_it_finish(
    preparations: Preparations, stored: StoredArtifact, reads: GatedReads
) -> None:
    """The artifact is then there for whoever asks next."""
    caller = asyncio.create_task(prepare(preparations, stored.manifest.id))
    await reads.wait_started()
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    preparations.changed.clear()
    reads.gate.set()
    await asyncio.wait_for(preparations.changed.wait(), 60)
    assert (stored.manifest.id,) == preparations.artifact_ids


async def test_closing_calls_off_a_running_read(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, reads: GatedReads
) -> None:
    """The caller hears of it, and the half-written file is gone."""
    async with open_preparations(store, DirectoryPlace(PlaceKind.TMPFS, shm / "weights")) as opened:
        caller = asyncio.create_task(prepare(opened, stored.manifest.id))
        await reads.wait_started()
        assert 1 == len(files_in(shm))
        asyncio.get_running_loop().call_soon(reads.gate.set)
    with pytest.raises(InternalError, match="ending"):
        await caller
    assert [] == files_in(shm)


@pytest.mark.parametrize("block", [0, 1, 2])
async def test_a_bad_block_leaves_nothing_and_may_be_mended(
    preparations: Preparations, stored: StoredArtifact, shm: Path, block: int
) -> None:
    """A failed verification names the block and keeps no byte; after mending, the same call succeeds.

    Turns red when: WeightLoad.run publishes before it reads.
    """
    weights = stored.path(stored.manifest.weights)
    position = weights.stat().st_size - (3 - block) * (4 << 20) + 12_345
    flip(weights, position)
    with pytest.raises(CorruptData, match=f"block {block} of 3"):
        await prepare(preparations, stored.manifest.id)
    assert ([], ()) == (files_in(shm), preparations.artifact_ids)
    flip(weights, position)
    await prepare(preparations, stored.manifest.id)


def make_link(path: Path) -> None:
    path.rename(path.parent.with_name("elsewhere"))
    path.symlink_to(path.parent.with_name("elsewhere"))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], type[HalogenError], str]] = {
    "tokenizer flipped": ("tokenizer.json", lambda p: flip(p, 100), CorruptData, r"tokenizer\.json does not match"),
    "config flipped": ("config.json", lambda p: flip(p, 0), CorruptData, r"config\.json does not match"),
    "config longer": ("config.json", lambda p: p.write_bytes(p.read_bytes() + b" "), CorruptData, r"config\.json has"),
    "config missing": ("config.json", lambda p: p.unlink(), CorruptData, r"config\.json is missing"),
    "config a link": ("config.json", make_link, CorruptData, r"config\.json is not a plain file"),
    "a file too many": ("notes.txt", lambda p: p.write_text("hello"), CorruptData, "'notes.txt' lies in the artifact's directory"),
    "weights missing": ("model.halogen", lambda p: p.unlink(), CorruptData, r"model\.halogen is missing"),
    "weights cut": ("model.halogen", lambda p: os.truncate(p, 4096), CorruptData, r"model\.halogen has 4096 bytes"),
    "weights empty": ("model.halogen", lambda p: os.truncate(p, 0), CorruptData, r"model\.halogen has 0 bytes"),
    "magic": ("model.halogen", lambda p: flip(p, 1), CorruptData, "not a weight file"),
    "version": ("model.halogen", lambda p: flip(p, 8), InvalidRequest, "format version"),
    "header": ("model.halogen", lambda p: flip(p, 200), CorruptData, "header"),
    "header padding": ("model.halogen", lambda p: flip(p, Header.decode(p.read_bytes()).data_offset - 1), CorruptData, "header padding"),
    "manifest flipped": ("manifest.json", lambda p: flip(p, 20), CorruptData, r"manifest\.json"),
    "manifest missing": ("manifest.json", lambda p: p.unlink(), NotFound, r"manifest\.json, which is written last, is not there"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
async def test_damage_to_any_file_is_refused_by_name(
    preparations: Preparations, stored: StoredArtifact, shm: Path, case: str
) -> None:
    """No byte of a damaged artifact reaches an engine."""
    name, damage, kind, expected = DAMAGE[case]
    damage(stored.directory / name)
    with pytest.raises(kind, match=expected):
        await prepare(preparations, stored.manifest.id)
    assert [] == files_in(shm)


async def test_a_scale_that_is_no_number_is_refused_before_a_place_is_taken(
    tmp_path: Path, preparations: Preparations, store: ArtifactStore, shm: Path
) -> None:
    """All digests are right, and yet no byte reaches an engine."""
    artifact, manifest = make_scaled_artifact(tmp_path / "scaled", bytes.fromhex("003c 007e"))
    store.put(artifact)
    with pytest.raises(CorruptData, match="holds a scale that is not a finite number"):
        await prepare(preparations, manifest.id)
    assert [] == files_in(shm)


@pytest.mark.parametrize("case", LIES)
async def test_a_table_that_lies_reaches_no_engine(
    tmp_path: Path, preparations: Preparations, store: ArtifactStore, shm: Path, case: str
) -> None:
    """The manifest vouches for it, and yet no place is taken."""
    lie, told = LIES[case]
    artifact, manifest = make_forged_artifact(tmp_path / "forged", lie)
    store.put(artifact)
    with pytest.raises(CorruptData, match=re.escape(told)):
        await prepare(preparations, manifest.id)
    assert [] == files_in(shm)


async def test_the_header_must_be_the_manifests(
    tmp_path: Path, preparations: Preparations, stored: StoredArtifact
) -> None:
    """Another model's weights of the same shape, whole in themselves, are still not these.

    Turns red when: read_header does not compare the identity.
    """
    other, _ = make_tiny_artifact(tmp_path / "other", MULTI_BLOCK, seed=1)
    stored.path(stored.manifest.weights).write_bytes((other / "model.halogen").read_bytes())
    with pytest.raises(CorruptData, match="another header than the manifest names"):
        await prepare(preparations, stored.manifest.id)


async def test_an_unknown_artifact_is_not_found(preparations: Preparations) -> None:
    """And every caller is told so."""
    with pytest.raises(NotFound):
        await prepare(preparations, ArtifactId("0" * 64))


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
    assert before == open_descriptors()


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


async def test_a_file_that_vanished_is_prepared_again(
    preparations: Preparations, stored: StoredArtifact
) -> None:
    """Somebody cleaned /dev/shm: the next caller gets a file that is there."""
    _, first = await prepare(preparations, stored.manifest.id)
    Path(first.holding.mapped_path).unlink()
    _, second = await prepare(preparations, stored.manifest.id)
    assert Path(second.holding.mapped_path).exists()


async def test_two_artifacts_at_a_time_are_read_one_after_the_other(
    tmp_path: Path, store: ArtifactStore, preparations: Preparations, stored: StoredArtifact
) -> None:
    """Both arrive."""
    directory, manifest = make_tiny_artifact(tmp_path)
    store.put(directory)
    await asyncio.gather(prepare(preparations, stored.manifest.id), prepare(preparations, manifest.id))
    assert tuple(sorted((stored.manifest.id, manifest.id))) == preparations.artifact_ids


async def test_how_weights_were_read_is_told(preparations: Preparations, stored: StoredArtifact) -> None:
    """For the status: what was probed, and how it went."""
    assert "to be probed at the first load" == preparations.report.text
    await prepare(preparations, stored.manifest.id)
    assert preparations.report.mode in {ReadMode.DIRECT, ReadMode.BUFFERED}
    assert preparations.report.text.startswith(preparations.report.mode.value)


@pytest.mark.parametrize(("share", "lazy"), [(1.0, 1.0), (0.25, 0.25), (0.0, 0.0)])
async def test_mapped_weights_stay_where_they_are(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, share: float, lazy: float
) -> None:
    """Only when it is asked for: verified in the store, copied nowhere, and partly left to be read later.

    Fault injection: turns red when InPlace.verify reads no block.
    """
    place = DirectoryPlace(PlaceKind.TMPFS, shm / "weights")
    reading = Reading(threads=2, asked=ReadMode.MMAP, lazy_share=share)
    weights = stored.path(stored.manifest.weights)
    async with open_preparations(store, place, reading=reading) as opened:
        _, prepared = await prepare(opened, stored.manifest.id)
        assert str(weights.resolve()) == prepared.holding.mapped_path
        assert int(lazy * weights.stat().st_size) == prepared.lazy_bytes
        assert ([], "file, the store's own") == (files_in(shm), opened.placement)
        assert opened.report.text.startswith("mmap, as asked")
    assert weights.exists(), "it is the store's"
    flip(weights, weights.stat().st_size - 1)
    async with open_preparations(store, place, reading=reading) as opened:
        with pytest.raises(CorruptData, match="block 2 of 3"):
            await prepare(opened, stored.manifest.id)


READER = """
import mmap, os, sys
path, size = sys.argv[1], int(sys.argv[2])
mapped = mmap.mmap(os.open(path, os.O_RDONLY), size, mmap.MAP_SHARED, mmap.PROT_READ)
sum(mapped[i] for i in range(0, size, 4096))
print("mapped", flush=True)
sys.stdin.readline()
for line in open("/proc/self/smaps"):
    if line.split()[-1] == path or (line.startswith("7f") and path.rpartition("/")[2] in line):
        print(line.split()[1], flush=True)
        break
here = False
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        here = path.rpartition("/")[2] in line
    elif here and line.startswith(("Shared_", "Private_")):
        print(line.strip(), flush=True)
"""


def start_reader(prepared: Prepared) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, prepared.holding.mapped_path, str(prepared.holding.size_bytes)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout
    assert "mapped\n" == reader.stdout.readline()
    return reader


async def test_engines_share_the_loaders_pages(preparations: Preparations, stored: StoredArtifact) -> None:
    """Two processes that map the file have no private page of it: one copy, however many engines."""
    _, prepared = await prepare(preparations, stored.manifest.id)

    def look() -> list[str]:
        with start_reader(prepared) as first, start_reader(prepared) as second:
            told, _ = first.communicate("\n")
            second.communicate("\n")
        return told.splitlines()

    flags, *counters = await asyncio.to_thread(look)
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in counters}
    assert "r--s" == flags
    assert 0 == kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    assert prepared.holding.size_bytes == 1024 * (kilobytes["Shared_Clean"] + kilobytes["Shared_Dirty"])


@pytest.mark.parametrize("kind", PlaceKind)
async def test_nothing_is_left_after_the_scope(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, tmp_path: Path, kind: PlaceKind
) -> None:
    """Neither files nor directories nor descriptors."""
    places: dict[PlaceKind, Place] = {
        PlaceKind.TMPFS: DirectoryPlace(PlaceKind.TMPFS, shm / "weights"),
        PlaceKind.DEV_SHM: DirectoryPlace(PlaceKind.DEV_SHM, shm / "weights"),
        PlaceKind.MEMFD: MemfdPlace(),
        PlaceKind.FILE: DirectoryPlace(PlaceKind.FILE, tmp_path / "cache" / "weights"),
    }
    before = open_descriptors()
    async with open_preparations(store, places[kind]) as opened:
        _, prepared = await prepare(opened, stored.manifest.id)
        assert Path(prepared.holding.mapped_path).exists()
    assert before == open_descriptors()
    assert not Path(prepared.holding.mapped_path).exists()
    assert [] == list(shm.iterdir())
    assert [] == files_in(tmp_path / "cache")
