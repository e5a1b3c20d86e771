"""Weights in a kernel's layout: packed once for a host, verified at every load, and as they are stored where that cannot be."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.derived_files import derived_name
from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.checkpoint.pack import pack, pack_gated
from services.common.checkpoint.partial_file import PartialFile
from services.common.checkpoint.verified_artifact import read_header
from services.common.errors import CorruptData, Overloaded, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.loader.artifact_cache import ArtifactCache
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.block_reader import BlockReader
from services.loader.cache_metrics import CacheMetrics
from services.loader.derived_cache import DerivedCache
from services.loader.directory_place import DirectoryPlace
from services.loader.memfd_place import MemfdPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import Place, PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared
from services.loader.wanted import AS_STORED, Wanted
from services.loader.weight_file import ReadMode
from services.loader.weight_packing import WeightPacking
from tests.tiny_checkpoints import MULTI_BLOCK, TinyShape, make_tiny_artifact
from tests.unit.loader.disk import flip, open_descriptors

PACKED: Final = Wanted(layout=PACKED32)


def cache_in(cache_dir: Path, most_bytes: int | None = None) -> DerivedCache:
    """As a loader opens it."""

    def opened() -> ArtifactCache:
        directory = CacheDirectory.of(cache_dir)
        return ArtifactCache(directory, most_bytes, CacheMetrics(CollectorRegistry()))

    return DerivedCache(opened)


def opened(
    store: ArtifactStore,
    place: Place,
    cache: DerivedCache,
    *,
    guard: MemoryGuard = UNGUARDED,
    asked: ReadMode | None = None,
) -> Preparations:
    return Preparations(
        ArtifactsInPlace(store),
        [place],
        reading=Reading(threads=2, asked=asked),
        keep_s=300,
        metrics=LoaderMetrics(CollectorRegistry()),
        guard=guard,
        derived=cache,
    )


@pytest.fixture
async def preparations(store: ArtifactStore, shm: Path, cache_dir: Path) -> AsyncIterator[Preparations]:
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as running:
        yield running


def tmpfs(shm: Path) -> DirectoryPlace:
    return DirectoryPlace(PlaceKind.TMPFS, shm / "weights")


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and path.name != "lock")


async def prepare(preparations: Preparations, artifact_id: ArtifactId, wanted: Wanted = PACKED) -> Prepared:
    async with contextlib.aclosing(preparations.prepare(artifact_id, wanted)) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, Prepared)
    return last


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """The bytes of data that are read of every weight file from now on, by its identity."""
    counted: collections.Counter[str] = collections.Counter()
    read_block = BlockReader._read_block

    def reading(self: BlockReader, index: int, offset: int, length: int, sink: object) -> None:
        counted[self._header.identity] += length
        read_block(self, index, offset, length, sink)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockReader, "_read_block", reading)
    return counted


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is packed from now on, by the identity of what it is made of."""
    packed: list[str] = []
    run = WeightPacking.run

    def running(
        self: WeightPacking, reading: Reading, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        packed.append(self.header.identity)
        run(self, reading, progress, stop)

    monkeypatch.setattr(WeightPacking, "run", running)
    return packed


def check_file(stored: StoredArtifact, prepared: Prepared) -> Header:
    """Every tensor is what its name says, every digest is right, and it is bound to the artifact; returns the header."""
    content = Path(prepared.holding.mapped_path).read_bytes()
    header, whole = Header.decode(content), read_header(stored)
    assert (prepared.identity, prepared.holding.size_bytes) == (header.identity, len(content))
    assert header.derived is not None
    assert (PACKED32, PACKED32, whole.identity) == (
        prepared.layout,
        header.derived.layout,
        header.derived.source,
    )
    data = content[header.data_offset :]
    digests = [block_digest(data[begin:end]) for begin, end in split_blocks(header.data_bytes)]
    assert list(header.digests) == digests
    plain = stored.path(stored.manifest.weights).read_bytes()
    for layer in range(whole.architecture.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        qkv = [f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"]
        gate, up = (tensor(plain, whole, f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up"))
        for name, expected in {
            "self_attn.qkv_proj": pack(np.concatenate([tensor(plain, whole, name) for name in qkv])),
            "self_attn.o_proj": pack(tensor(plain, whole, f"{prefix}self_attn.o_proj.weight")),
            "mlp.gate_up_proj": pack_gated(gate, up),
            "mlp.down_proj": pack(tensor(plain, whole, f"{prefix}mlp.down_proj.weight")),
        }.items():
            np.testing.assert_array_equal(expected, tensor(content, header, f"{prefix}{name}.packed"))
    return header


def tensor(content: bytes, header: Header, name: str) -> npt.NDArray[np.uint16]:
    entry = header.tensors[name]
    return np.frombuffer(content, np.uint16, entry.nbytes // 2, entry.offset).reshape(entry.shape)


def name_of(stored: StoredArtifact) -> str:
    return derived_name(stored.manifest.id, PACKED32)


def on_disk(cache_dir: Path, stored: StoredArtifact) -> Path:
    return cache_dir / "artifacts" / "derived" / name_of(stored)


async def test_the_first_to_ask_has_it_packed_and_only_that_is_brought_into_memory(
    preparations: Preparations,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
    reads: collections.Counter[str],
) -> None:
    """Each block of either file is read once, and verified; the file that it was made of takes no memory.

    Fault injection: turns red when DerivedLoads loads the whole artifact, too, or reads what it packs twice.
    """
    prepared = await prepare(preparations, stored.manifest.id)
    header, whole = check_file(stored, prepared), read_header(stored)
    assert {whole.identity: whole.data_bytes, header.identity: header.data_bytes} == reads
    assert [name_of(stored)] == files_in(shm)
    assert [name_of(stored)] == files_in(cache_dir)
    assert Path(prepared.holding.mapped_path).read_bytes() == on_disk(cache_dir, stored).read_bytes()
    assert 0o444 == on_disk(cache_dir, stored).stat().st_mode & 0o777
    assert ((stored.manifest.id,), (name_of(stored),)) == (
        preparations.artifact_ids,
        preparations.file_names,
    )


async def test_a_warm_start_packs_nothing(
    store: ArtifactStore,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
    packings: list[str],
    reads: collections.Counter[str],
) -> None:
    """A loader that starts again reads what was packed and nothing else, not even a header of the artifact's own file.

    Fault injection: turns red when DerivedLoads._find looks in memory alone.
    """
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as first:
        identity = (await prepare(first, stored.manifest.id)).identity
    reads.clear()
    stored.path(stored.manifest.weights).unlink()
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as second:
        assert identity == (await prepare(second, stored.manifest.id)).identity
    assert [identity] == list(reads)
    assert 1 == len(packings)


async def test_all_who_ask_at_once_have_it_packed_once(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path, packings: list[str]
) -> None:
    """Callers of one loader, loaders of one directory in memory, and loaders that share the cache's disk alone.

    Fault injection: turns red when DerivedLoads._derive takes no turn in the cache.
    """
    async with (
        opened(store, tmpfs(shm), cache_in(cache_dir)) as first,
        opened(store, tmpfs(shm), cache_in(cache_dir)) as second,
        opened(store, MemfdPlace(), cache_in(cache_dir)) as elsewhere,
    ):
        loaders = first, first, second, elsewhere
        made = await asyncio.gather(*(prepare(each, stored.manifest.id) for each in loaders))
        for prepared in made:
            check_file(stored, prepared)
    assert 1 == len(packings)
    assert made[0] is made[1]
    assert made[0].holding.mapped_path == made[2].holding.mapped_path


async def test_layouts_live_side_by_side(preparations: Preparations, stored: StoredArtifact) -> None:
    """Each is its own file; whoever asks for none gets the weights as they are stored."""
    packed = await prepare(preparations, stored.manifest.id)
    plain = await prepare(preparations, stored.manifest.id, AS_STORED)
    assert plain.layout is None
    assert stored.path(stored.manifest.weights).read_bytes() == Path(plain.holding.mapped_path).read_bytes()
    assert packed is await prepare(preparations, stored.manifest.id)


async def test_a_bad_block_is_never_packed(
    preparations: Preparations, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """The artifact is refused as without a layout; neither memory nor disk keeps anything, and once mended all is well.

    Fault injection: turns red when PackSink.window puts tensors before its scope ends, or a file that failed stays.
    """
    path = stored.path(stored.manifest.weights)
    flip(path, path.stat().st_size - 1)
    with pytest.raises(CorruptData, match="block 2 of 3"):
        await prepare(preparations, stored.manifest.id)
    assert ([], []) == (files_in(shm), files_in(cache_dir))
    flip(path, path.stat().st_size - 1)
    check_file(stored, await prepare(preparations, stored.manifest.id))


@pytest.mark.parametrize("where", ["data", "header", "length"])
async def test_a_file_that_the_disk_spoilt_is_made_anew(
    store: ArtifactStore,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
    packings: list[str],
    where: str,
) -> None:
    """It is told in the log and gone; the artifact itself is blamed for nothing.

    Fault injection: turns red when DerivedLoads._read lets the fault go on to whoever asked.
    """
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as first:
        await prepare(first, stored.manifest.id)
    path = on_disk(cache_dir, stored)
    path.chmod(0o644)
    match where:
        case "data":
            flip(path, path.stat().st_size - 1)
        case "header":
            flip(path, 100)
        case "length":
            with path.open("ab") as file:
                file.write(b"more")
    with capture_logs() as logged:
        async with opened(store, tmpfs(shm), cache_in(cache_dir)) as second:
            check_file(stored, await prepare(second, stored.manifest.id))
    assert 2 == len(packings)
    assert 1 == [line["event"] for line in logged].count("derived_file_wrong")


async def test_a_file_made_of_other_weights_is_not_taken(
    preparations: Preparations,
    store: ArtifactStore,
    stored: StoredArtifact,
    cache_dir: Path,
    tmp_path: Path,
    packings: list[str],
) -> None:
    """Sound in itself, of the same shapes, under the right name: it says what it was made of, so it is made anew.

    Fault injection: turns red when check_layout compares tables of tensors alone.
    """
    made, _ = make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=7)
    other = store.open(store.put(made))
    await prepare(preparations, other.manifest.id)
    on_disk(cache_dir, other).rename(on_disk(cache_dir, stored))
    check_file(stored, await prepare(preparations, stored.manifest.id))
    assert 2 == len(packings)


@pytest.mark.parametrize("failure", ["full", "bound", "read-only", "unusable"])
async def test_where_none_can_be_made_weights_come_as_they_are_stored(
    store: ArtifactStore,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
) -> None:
    """A disk that is full, too small a bound, a cache that cannot be written: one line in the log, and it serves.

    Fault injection: turns red when Preparations.prepare does not catch NotDerived.
    """
    cache = cache_in(cache_dir, 4096 if failure == "bound" else None)
    if failure == "unusable":
        cache = DerivedCache(unusable)
    elif failure != "bound":
        number = errno.ENOSPC if failure == "full" else errno.EROFS
        monkeypatch.setattr(PartialFile, "allocate", failing(number))
    before = open_descriptors()
    with capture_logs() as logged:
        async with opened(store, tmpfs(shm), cache) as running:
            prepared = await prepare(running, stored.manifest.id)
            assert (None, [stored.manifest.id]) == (prepared.layout, files_in(shm))
    told = [line["event"] for line in logged if line["log_level"] == "warning"]
    assert ["layout_not_derived"] == [event for event in told if event != "pages_not_huge"]
    assert [] == files_in(cache_dir)
    assert set() == open_descriptors() - before


def unusable() -> ArtifactCache:
    raise PreconditionFailed("the cache cannot be used")


def failing(number: int) -> Callable[[PartialFile], None]:
    def allocate(_self: PartialFile) -> None:
        raise OSError(number, "broken")

    return allocate


async def test_a_failed_write_leaves_nothing_half_made(
    preparations: Preparations,
    stored: StoredArtifact,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk gives up on the last sync: weights come as they are stored, and the next to ask has it packed."""
    with monkeypatch.context() as patched:
        patched.setattr(PartialFile, "finish", failing(errno.EIO))
        assert (await prepare(preparations, stored.manifest.id)).layout is None
        assert [] == files_in(cache_dir)
    check_file(stored, await prepare(preparations, stored.manifest.id))


@pytest.mark.parametrize(
    "layout", [KernelLayout("packed64-v2", "x86"), KernelLayout("packed32-v1", "../arm")]
)
async def test_an_unknown_layout_is_not_made(
    preparations: Preparations, stored: StoredArtifact, cache_dir: Path, layout: KernelLayout
) -> None:
    """An engine of another build gets the weights as they are stored, and no path is made of what it says."""
    prepared = await prepare(preparations, stored.manifest.id, Wanted(layout=layout))
    assert (None, False) == (prepared.layout, cache_dir.exists())


async def test_other_dtypes_stay_as_they_are(
    preparations: Preparations, store: ArtifactStore, tmp_path: Path, cache_dir: Path
) -> None:
    """There is no layout of float32: kernels read it in place."""
    made, manifest = make_tiny_artifact(tmp_path, TinyShape(dtype=DType.FP32))
    store.put(made)
    prepared = await prepare(preparations, manifest.id)
    assert (None, False) == (prepared.layout, cache_dir.exists())


async def test_whole_files_that_are_mapped_stay_where_they_are(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """An operator who wants no copy gets none."""
    async with opened(store, tmpfs(shm), cache_in(cache_dir), asked=ReadMode.MMAP) as running:
        prepared = await prepare(running, stored.manifest.id)
    assert (None, False) == (prepared.layout, cache_dir.exists())


async def test_the_memory_guard_counts_the_packed_file(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """All of it, before anything is read, and nothing else.

    Fault injection: turns red when DerivedLoads._foresee counts the artifact's own file.
    """
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as unguarded:
        size_bytes = (await prepare(unguarded, stored.manifest.id)).holding.size_bytes
    assert size_bytes != stored.manifest.weights.size_bytes
    for room_bytes, fits in ((size_bytes - 1, False), (size_bytes, True)):
        guard = MemoryGuard(1, lambda room=room_bytes: [Bound("this host", room, 0)])  # type: ignore[misc]
        async with opened(store, tmpfs(shm), cache_in(cache_dir), guard=guard) as guarded:
            if fits:
                await prepare(guarded, stored.manifest.id)
            else:
                with pytest.raises(Overloaded, match=f"needs {size_bytes}"):
                    await prepare(guarded, stored.manifest.id)


async def test_the_last_caller_to_leave_calls_it_off(
    store: ArtifactStore,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is left on the disk or in memory, and the next to ask has it packed."""
    begun, gate = threading.Event(), threading.Event()
    run = WeightPacking.run

    def held(
        self: WeightPacking, reading: Reading, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        begun.set()
        gate.wait()
        run(self, reading, progress, stop)

    before = open_descriptors()
    async with opened(store, tmpfs(shm), cache_in(cache_dir)) as running:
        with monkeypatch.context() as patched:
            patched.setattr(WeightPacking, "run", held)
            caller = asyncio.create_task(prepare(running, stored.manifest.id))
            await asyncio.to_thread(begun.wait)
            caller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await caller
            gate.set()
        check_file(stored, await prepare(running, stored.manifest.id))
        assert [name_of(stored)] == files_in(cache_dir)
    assert set() == open_descriptors() - before


async def test_what_another_loader_made_in_memory_is_adopted(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path, reads: collections.Counter[str]
) -> None:
    """By its own digests; of the disk nothing is read.

    Fault injection: turns red when DerivedLoads._find does not look in memory first.
    """
    async with (
        opened(store, tmpfs(shm), cache_in(cache_dir)) as first,
        opened(store, tmpfs(shm), cache_in(cache_dir)) as second,
    ):
        made = await prepare(first, stored.manifest.id)
        on_disk(cache_dir, stored).unlink()
        stored.path(stored.manifest.weights).unlink()
        packed_bytes = reads[made.identity]
        again = await prepare(second, stored.manifest.id)
        assert made.holding.mapped_path == again.holding.mapped_path
        assert 2 * packed_bytes == reads[made.identity]
