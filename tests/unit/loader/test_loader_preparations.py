"""Preparations: one read however many ask, every byte verified, no memory left behind."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import (
    CorruptData,
    InternalError,
)
from services.loader.block_reader import BlockReader
from services.loader.directory_place import DirectoryPlace
from services.loader.memfd_place import MemfdPlace
from services.loader.place import Place, PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared
from services.loader.sink import MappedSink, ScratchSink, Sink
from services.loader.weight_file import ReadMode
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.loader.disk import flip, open_descriptors, touch
from tests.unit.loader.preparing import Clock, files_in, open_preparations, prepare


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


async def test_the_last_caller_to_leave_calls_it_off(
    preparations: Preparations, stored: StoredArtifact, reads: GatedReads, shm: Path
) -> None:
    """The read ends at its next block, and whoever asks meanwhile waits for that, and has it read anew.

    Fault injection: turns red when `Flight.follow` lets the last one leave without a word, or when `prepare` takes
    what a flight that was called off has failed with for an answer.
    """
    caller = asyncio.create_task(prepare(preparations, stored.manifest.id))
    await reads.wait_started()
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    later = asyncio.create_task(prepare(preparations, stored.manifest.id))
    await asyncio.sleep(0)  # it waits for the flight that was called off
    assert () == preparations.artifact_ids
    reads.gate.set()
    _, prepared = await later
    assert 2 == reads.count
    assert [Path(prepared.holding.mapped_path)] == files_in(shm)


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


async def test_a_file_that_vanished_is_prepared_again(
    preparations: Preparations, stored: StoredArtifact
) -> None:
    """Somebody cleaned /dev/shm: the next caller gets a file that is there."""
    _, first = await prepare(preparations, stored.manifest.id)
    Path(first.holding.mapped_path).unlink()
    _, second = await prepare(preparations, stored.manifest.id)
    assert Path(second.holding.mapped_path).exists()


async def test_what_rested_is_taken_back_without_a_read(
    tmp_path: Path, store: ArtifactStore, stored: StoredArtifact, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody has touched it; else it is verified, and what is wrong is read anew.

    Fault injection: Adoption.run does not ask whether its file is vouched for, or VouchedFiles.has always says so.
    """
    directory, manifest = make_tiny_artifact(tmp_path)
    store.put(directory)
    clock, sinks = Clock(), list[type[Sink]]()
    read_into = BlockReader.read_into

    def noted(reader: BlockReader, sink: Sink, *more: Any) -> None:
        sinks.append(type(sink))
        read_into(reader, sink, *more)

    async with open_preparations(
        store, DirectoryPlace(PlaceKind.TMPFS, shm / "weights"), clock=clock
    ) as opened:
        _, first = await prepare(opened, stored.manifest.id)
        await prepare(opened, manifest.id)
        monkeypatch.setattr(BlockReader, "read_into", noted)

        async def after_a_rest() -> Prepared:
            clock.now_s += 20.0
            await prepare(opened, manifest.id)
            return (await prepare(opened, stored.manifest.id))[1]

        path = Path(first.holding.mapped_path)
        assert [str(path)] * 2 == [(await after_a_rest()).holding.mapped_path for _ in range(2)]
        assert [] == sinks
        touch(path)
        flip(path, path.stat().st_size - 1)
        await after_a_rest()
        assert [ScratchSink, MappedSink] == sinks
        assert stored.path(stored.manifest.weights).read_bytes() == path.read_bytes()


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

    It is verified anew for who comes once somebody has touched it.

    Fault injection: turns red when InPlace.verify reads no block, or gives its holding no stamp.
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
        touch(weights)
        flip(weights, weights.stat().st_size - 1)
        with pytest.raises(CorruptData, match="block 2 of 3"):
            await prepare(opened, stored.manifest.id)
    assert weights.exists(), "it is the store's"


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
    assert set() == open_descriptors() - before
    assert not Path(prepared.holding.mapped_path).exists()
    assert [] == list(shm.iterdir())
    assert [] == files_in(tmp_path / "cache")
