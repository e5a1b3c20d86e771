"""Tensor-parallel ranks: each has its part and no more, and one read of the disk fills the files of all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES, block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import Shard
from services.common.checkpoint.verified_artifact import read_header
from services.common.errors import Cancelled, CorruptData, InvalidRequest, Overloaded, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.engine.mapping import map_file
from services.engine.model.weights import bind
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.block_reader import BlockReader
from services.loader.directory_place import DirectoryPlace
from services.loader.memfd_place import MemfdPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import Place, PlaceKind
from services.loader.preparations import Preparations
from services.loader.ranks import Ranks
from services.loader.reading import Reading
from services.loader.residents import Prepared
from services.loader.shared_directory import HeldFile, UnfinishedFile
from services.loader.wanted import Wanted
from services.loader.weight_file import ReadMode, WeightFile
from tests.unit.loader.disk import flip, open_descriptors

AXIS = {Shard.ROWS: 0, Shard.COLUMNS: 1}


def opened(
    store: ArtifactStore, place: Place, *, guard: MemoryGuard = UNGUARDED, asked: ReadMode | None = None
) -> Preparations:
    return Preparations(
        ArtifactsInPlace(store),
        [place],
        reading=Reading(threads=2, asked=asked),
        keep_s=300,
        metrics=LoaderMetrics(CollectorRegistry()),
        guard=guard,
    )


@pytest.fixture
async def preparations(store: ArtifactStore, shm: Path) -> AsyncIterator[Preparations]:
    async with opened(store, tmpfs(shm)) as running:
        yield running


def tmpfs(shm: Path) -> DirectoryPlace:
    return DirectoryPlace(PlaceKind.TMPFS, shm / "weights")


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


async def prepare(preparations: Preparations, artifact_id: ArtifactId, ranks: Ranks | None) -> Prepared:
    async with contextlib.aclosing(preparations.prepare(artifact_id, Wanted(ranks))) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, Prepared)
    return last


def rank(index: int, size: int, *here: int) -> Ranks:
    asked = Ranks.asked(size, index, here)
    assert asked is not None
    return asked


def part(stored: StoredArtifact, name: str, index: int, size: int) -> npt.NDArray[np.uint16]:
    """What numpy's split gives the rank of a tensor of the whole file."""
    path = stored.path(stored.manifest.weights)
    entry = read_header(stored).tensors[name]
    whole = np.frombuffer(path.read_bytes(), np.uint16, entry.nbytes // 2, entry.offset).reshape(entry.shape)
    if entry.shard is Shard.REPLICATED:
        return whole
    return np.split(whole, size, AXIS[entry.shard])[index]


def check_file(stored: StoredArtifact, prepared: Prepared, index: int, size: int) -> Header:
    """Every tensor is the rank's part of it, and every digest is right; returns the header."""
    content = Path(prepared.holding.mapped_path).read_bytes()
    header = Header.decode(content)
    assert (prepared.identity, prepared.holding.size_bytes) == (header.identity, len(content))
    assert read_header(stored).tensors.keys() == header.tensors.keys()
    for entry in header.layout.entries:
        found = np.frombuffer(content, np.uint16, entry.nbytes // 2, entry.offset).reshape(entry.shape)
        np.testing.assert_array_equal(part(stored, entry.name, index, size), found)
    data = content[header.data_offset :]
    digests = [block_digest(data[begin:end]) for begin, end in split_blocks(header.data_bytes)]
    assert list(header.digests) == digests
    return header


@pytest.mark.parametrize("size", [2, 4])
async def test_every_rank_gets_exactly_its_part_and_the_disk_is_read_once(
    preparations: Preparations, stored: StoredArtifact, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """All ask at once; together they read as much as one that asks for the whole.

    Fault injection: turns red when Preparations._load prepares only the rank that asks.
    """
    read_bytes = count_reads(monkeypatch)
    answers = await asyncio.gather(
        *(prepare(preparations, stored.manifest.id, rank(index, size)) for index in range(size))
    )
    assert sum(read_bytes) == read_header(stored).data_bytes
    for index, prepared in enumerate(answers):
        header = check_file(stored, prepared, index, size)
        assert header.data_bytes < read_header(stored).data_bytes
    again = await prepare(preparations, stored.manifest.id, rank(0, size))
    assert (answers[0], read_header(stored).data_bytes) == (again, sum(read_bytes))
    assert (stored.manifest.id,) == preparations.artifact_ids


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every read of a weight file from now on."""
    counted: list[int] = []
    read = WeightFile.read

    def reading(self: WeightFile, window: memoryview, offset: int) -> int:
        counted.append(read(self, window, offset))
        return counted[-1]

    monkeypatch.setattr(WeightFile, "read", reading)
    return counted


async def test_a_host_with_some_of_the_ranks_makes_their_files_alone(
    preparations: Preparations, stored: StoredArtifact, shm: Path
) -> None:
    """A rank that is asked for later, from another host's list, comes beside them."""
    one = await prepare(preparations, stored.manifest.id, rank(1, 4, 1, 3))
    check_file(stored, one, 1, 4)
    assert [f"{stored.manifest.id}.rank-{index}-of-4" for index in (1, 3)] == files_in(shm)
    check_file(stored, await prepare(preparations, stored.manifest.id, rank(0, 4, 0, 1)), 0, 4)
    assert [f"{stored.manifest.id}.rank-{index}-of-4" for index in (0, 1, 3)] == files_in(shm)


async def test_the_whole_and_its_parts_live_side_by_side(
    preparations: Preparations, stored: StoredArtifact
) -> None:
    """Each is its own file; a single rank has the whole."""
    whole = await prepare(preparations, stored.manifest.id, None)
    assert Ranks.asked(1, 0, ()) is None
    check_file(stored, await prepare(preparations, stored.manifest.id, rank(0, 2)), 0, 2)
    assert stored.path(stored.manifest.weights).read_bytes() == Path(whole.holding.mapped_path).read_bytes()


@pytest.mark.parametrize("kind", [PlaceKind.MEMFD, PlaceKind.FILE])
async def test_ranks_lie_in_any_place(
    store: ArtifactStore, stored: StoredArtifact, tmp_path: Path, kind: PlaceKind
) -> None:
    """And leave nothing there."""
    place: Place = MemfdPlace() if kind is PlaceKind.MEMFD else DirectoryPlace(kind, tmp_path / "cache" / "w")
    before = open_descriptors()
    async with opened(store, place) as running:
        check_file(stored, await prepare(running, stored.manifest.id, rank(1, 2)), 1, 2)
    assert set() == open_descriptors() - before
    assert [] == files_in(tmp_path / "cache")


async def test_an_engine_can_map_a_rank_as_a_decoder_of_its_size(
    preparations: Preparations, stored: StoredArtifact
) -> None:
    """Fused matrices are views of the rank's file: half the heads, half the width, half the vocabulary."""
    prepared = await prepare(preparations, stored.manifest.id, rank(1, 2))
    mapped = map_file(Path(prepared.holding.mapped_path))
    header = Header.decode(mapped[: 1 << 20].numpy().tobytes())
    weights = bind(mapped, header, halved(stored.manifest.architecture), "auto")
    q_part = part(stored, "model.layers.0.self_attn.q_proj.weight", 1, 2)
    qkv = weights.layers[0].qkv
    assert 0 <= qkv.data_ptr() - mapped.data_ptr() < mapped.numel()
    np.testing.assert_array_equal(q_part, qkv.view(torch.uint16)[: len(q_part)].numpy())
    assert len(q_part) * 3 == len(qkv), "as many keys and values"


def halved(architecture: Architecture) -> Architecture:
    """What one of two ranks computes with."""
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    return dataclasses.replace(architecture, **{name: getattr(architecture, name) // 2 for name in names})


async def test_a_bad_block_fails_all_ranks_and_leaves_nothing(
    preparations: Preparations, stored: StoredArtifact, shm: Path
) -> None:
    """Every block that covers their ranges is verified, and after mending all is well.

    Fault injection: turns red when RanksSink.window copies before its scope ends.
    """
    path = stored.path(stored.manifest.weights)
    position = path.stat().st_size - BLOCK_BYTES
    flip(path, position)
    for index in (0, 1):
        with pytest.raises(CorruptData, match="block 2 of 3"):
            await prepare(preparations, stored.manifest.id, rank(index, 2))
        assert [] == files_in(shm)
    flip(path, position)
    check_file(stored, await prepare(preparations, stored.manifest.id, rank(1, 2)), 1, 2)


@pytest.mark.parametrize("damage", [False, True])
async def test_another_loader_adopts_the_files_of_ranks_that_are_sound(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, monkeypatch: pytest.MonkeyPatch, damage: bool
) -> None:
    """By their own digests; a damaged one is made anew, the other is not.

    Fault injection: turns red when RankLoads._adopt finds nothing.
    """
    async with opened(store, tmpfs(shm)) as first, opened(store, tmpfs(shm)) as second:
        made = [await prepare(first, stored.manifest.id, rank(index, 2)) for index in (0, 1)]
        if damage:
            left = Path(made[1].holding.mapped_path)
            left.chmod(0o644)
            flip(left, left.stat().st_size - 1)
        read_bytes = count_reads(monkeypatch)
        again = [await prepare(second, stored.manifest.id, rank(index, 2)) for index in (0, 1)]
        in_memory = sum(one.holding.size_bytes - data_offset(one) for one in made)
        assert (sum(read_bytes) > in_memory) == damage
        for index in (0, 1):
            check_file(stored, again[index], index, 2)
        assert made[0].holding.mapped_path == again[0].holding.mapped_path


def data_offset(prepared: Prepared) -> int:
    return Header.decode(Path(prepared.holding.mapped_path).read_bytes()).data_offset


@pytest.mark.parametrize(
    ("size", "index", "here", "message"),
    [
        (0, 0, (), "may be 1 to 1024"),
        (1025, 0, (), "may be 1 to 1024"),
        (2, 2, (), "they are 0 to 1"),
        (2, 0, (0, 5), "they are 0 to 1"),
    ],
)
def test_there_must_be_such_a_rank(size: int, index: int, here: tuple[int, ...], message: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidRequest, match=message):
        Ranks.asked(size, index, here)


async def test_what_cannot_be_divided_is_refused_by_name(
    preparations: Preparations, stored: StoredArtifact, shm: Path
) -> None:
    """With the arithmetic."""
    with pytest.raises(
        InvalidRequest, match=r"3 tensor-parallel ranks cannot share this model: tensor .* 3 ranks"
    ):
        await prepare(preparations, stored.manifest.id, rank(0, 3))
    assert [] == files_in(shm)


async def test_all_ranks_of_a_host_must_pass_the_memory_guard(
    store: ArtifactStore, stored: StoredArtifact, shm: Path
) -> None:
    """Together, before the first of them takes a place."""
    whole = stored.manifest.weights.size_bytes
    guard = MemoryGuard(1, lambda: [Bound("this host", whole - BLOCK_BYTES, 0)])
    async with opened(store, tmpfs(shm), guard=guard) as running:
        with pytest.raises(Overloaded, match="memory guard"):
            await prepare(running, stored.manifest.id, rank(0, 2))
        assert [] == files_in(shm)
        await prepare(running, stored.manifest.id, rank(0, 2, 0))


async def test_whole_files_that_are_mapped_have_no_ranks(
    store: ArtifactStore, stored: StoredArtifact, shm: Path
) -> None:
    """The message names the flag."""
    async with opened(store, tmpfs(shm), asked=ReadMode.MMAP) as running:
        with pytest.raises(PreconditionFailed, match="--read-mode mmap"):
            await prepare(running, stored.manifest.id, rank(0, 2))


async def test_a_read_that_is_called_off_leaves_no_rank(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither file nor memory."""

    def read_into(*_: object, **__: object) -> None:
        raise Cancelled("called off")

    monkeypatch.setattr(BlockReader, "read_into", read_into)
    before = open_descriptors()
    async with opened(store, tmpfs(shm)) as running:
        with pytest.raises(Cancelled):
            await prepare(running, stored.manifest.id, rank(0, 2))
        assert [] == files_in(shm)
    assert set() == open_descriptors() - before


async def test_a_rank_that_cannot_have_its_name_leaves_nothing_half_made(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it is whole, and is there for whoever asks next.

    Fault injection: turns red when RankLoad._publish lets go of nothing, or discards nothing.
    """
    finish, finished = UnfinishedFile.finish, itertools.count()

    def second_fails(file: UnfinishedFile) -> HeldFile:
        if next(finished) == 1:
            raise OSError(errno.EIO, "broken")
        return finish(file)

    monkeypatch.setattr(UnfinishedFile, "finish", second_fails)
    before = open_descriptors()
    async with opened(store, tmpfs(shm)) as running:
        with pytest.raises(OSError, match="broken"):
            await prepare(running, stored.manifest.id, rank(0, 4))
        assert [f"{stored.manifest.id}.rank-0-of-4"] == files_in(shm)
        await prepare(running, stored.manifest.id, rank(0, 4))
        assert 4 == len(files_in(shm))
    assert set() == open_descriptors() - before
