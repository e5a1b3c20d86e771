"""Block reads: every byte arrives, every wrong one is found, whatever the system calls do."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.header import Header
from services.common.checkpoint.verified_artifact import read_header
from services.common.errors import Cancelled, CorruptData
from services.loader.block_reader import BlockReader
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import FileSink, MappedSink, Sink
from services.loader.weight_file import ReadMode, open_direct
from tests.unit.loader.disk import flip, open_descriptors


def ignore(_: int) -> None:
    """Progress that nobody looks at."""


class Target:
    """A file of the right size and the sink that leads into it."""

    def __init__(self, path: Path, size_bytes: int, mapped: bool) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.descriptor, size_bytes)
        self._mapping = SharedMapping(self.descriptor, size_bytes) if mapped else None
        self.sink: Sink = MappedSink(self._mapping) if self._mapping else FileSink(self.descriptor)

    def close(self) -> None:
        if self._mapping:
            self._mapping.__exit__(None, None, None)
        os.close(self.descriptor)


@pytest.fixture(params=[True, False], ids=["mapped", "file"])
def target(request: pytest.FixtureRequest, tmp_path: Path, header: Header) -> Iterator[Target]:
    target = Target(tmp_path / "target", header.file_bytes, request.param)
    yield target
    target.close()


@pytest.fixture
def header(stored: StoredArtifact) -> Header:
    return read_header(stored)


@pytest.fixture
def weights(stored: StoredArtifact) -> Path:
    return stored.path(stored.manifest.weights)


def read(descriptor: int, header: Header) -> bytes:
    return os.pread(descriptor, header.data_bytes, header.data_offset)


def data_of(weights: Path, header: Header) -> bytes:
    return weights.read_bytes()[header.data_offset :]


def test_all_blocks_arrive(weights: Path, header: Header, target: Target) -> None:
    """Every byte of the data lies at its own offset, and the progress adds up to it."""
    told: list[int] = []
    reader = BlockReader(weights, header, 4)
    reader.read_into(target.sink, told.append, threading.Event())
    assert data_of(weights, header) == read(target.descriptor, header)
    assert [BLOCK_BYTES] * 3 == told


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("position", [0, BLOCK_BYTES // 2, BLOCK_BYTES - 1])
def test_a_flipped_byte_in_any_block_is_found(
    weights: Path, header: Header, target: Target, threads: int, block: int, position: int
) -> None:
    """The message names file and block.

    Turns red when: BlockReader._read_block does not compare the digest.
    """
    flip(weights, header.data_offset + block * BLOCK_BYTES + position)
    with pytest.raises(CorruptData, match=rf"model\.halogen: block {block} of 3 does not match") as failure:
        BlockReader(weights, header, threads).read_into(target.sink, ignore, threading.Event())
    told = {"file": "model.halogen", "region": "data", "block": str(block)}
    assert told == failure.value.metadata


def test_a_file_cut_off_under_the_reader_is_found(weights: Path, header: Header, target: Target) -> None:
    """No SIGBUS, no endless loop: the block that is not there is named."""
    os.truncate(weights, header.data_offset + 2 * BLOCK_BYTES + 4096)
    with pytest.raises(CorruptData, match="block 2 of 3 is cut off"):
        BlockReader(weights, header, 2).read_into(target.sink, ignore, threading.Event())


def test_without_direct_reads_buffered_ones_do(weights: Path, header: Header, target: Target) -> None:
    """A file system that refuses O_DIRECT costs speed, nothing else."""

    def refuse(_: Path) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    reader = BlockReader(weights, header, 4, refuse)
    reader.read_into(target.sink, ignore, threading.Event())
    assert (ReadMode.BUFFERED, "Invalid argument") == (reader.mode, reader.refusal)
    assert data_of(weights, header) == read(target.descriptor, header)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_direct_read_refused_midway_goes_on_buffered(
    monkeypatch: pytest.MonkeyPatch, weights: Path, header: Header, target: Target, number: int
) -> None:
    """A direct read that is refused once it has worked is made up for."""
    direct, original, tried = open_direct(weights), os.preadv, list[int]()

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if descriptor == direct:
            tried.append(offset)
        if descriptor == direct and len(tried) > 1:  # the first is the probe
            raise OSError(number, "refused")
        return original(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    BlockReader(weights, header, 2, lambda _: direct).read_into(target.sink, ignore, threading.Event())
    assert len(tried) > 1
    assert data_of(weights, header) == read(target.descriptor, header)


def test_short_reads_are_completed(
    monkeypatch: pytest.MonkeyPatch, weights: Path, header: Header, target: Target
) -> None:
    """The kernel may return less than was asked for, also at an odd length."""
    original = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        length = min(len(buffers[0]), 1_000_001)
        with buffers[0][:length] as part:
            return original(descriptor, [part], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    BlockReader(weights, header, 3).read_into(target.sink, ignore, threading.Event())
    assert data_of(weights, header) == read(target.descriptor, header)


def test_a_failing_disk_is_not_called_corrupt(
    monkeypatch: pytest.MonkeyPatch, weights: Path, header: Header, target: Target
) -> None:
    """EIO says something else about what to do, so it passes as it is."""

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="Input/output"):
        BlockReader(weights, header, 2).read_into(target.sink, ignore, threading.Event())


def test_the_read_can_be_called_off(weights: Path, header: Header, target: Target) -> None:
    """After the block that is being read, no other is begun."""
    stop, told = threading.Event(), list[int]()

    def progress(length: int) -> None:
        told.append(length)
        stop.set()

    with pytest.raises(Cancelled):
        BlockReader(weights, header, 1).read_into(target.sink, progress, stop)
    assert [BLOCK_BYTES] == told


def test_nothing_stays_open(weights: Path, header: Header, target: Target) -> None:
    """Descriptors are closed after success and after failure."""
    before = open_descriptors()
    BlockReader(weights, header, 4).read_into(target.sink, ignore, threading.Event())
    flip(weights, header.data_offset)
    with pytest.raises(CorruptData):
        BlockReader(weights, header, 4).read_into(target.sink, ignore, threading.Event())
    assert set() == open_descriptors() - before
