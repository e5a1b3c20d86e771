"""The writer: exact bytes, right digests, nothing that could be taken for a file after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorEntry, TensorSpec
from services.common.checkpoint.writer import write_weights
from services.common.errors import CorruptData
from tests.unit.checkpoint.strategies import ARCHITECTURE, tensor_specs


def content_of(entry: TensorEntry) -> bytes:
    """Bytes below 0x7a, so that no scale is infinite."""
    return entry.name.encode()[-3:].ljust(entry.nbytes, entry.name.encode()[-1:])[: entry.nbytes]


def pieces_of(entry: TensorEntry) -> Iterator[bytes]:
    content = content_of(entry)
    for begin in range(0, len(content), 1000):
        yield content[begin : begin + 1000]


@settings(deadline=None)  # it writes to a disk that others use too
@given(tensor_specs())
def test_every_tensor_lies_where_the_header_says(
    tmp_path_factory: pytest.TempPathFactory, specs: tuple[TensorSpec, ...]
) -> None:
    """Offsets are exact, blocks match their digests, the rest is zero, and the progress ends at the end."""
    told: list[tuple[int, int]] = []
    path = tmp_path_factory.mktemp("weights") / "model.halogen"
    header = write_weights(path, specs, ARCHITECTURE, pieces_of, lambda *done: told.append(done))
    written = path.read_bytes()
    assert header == Header.decode(written)
    assert header.file_bytes == len(written)
    for entry in header.layout.entries:
        assert content_of(entry) == written[entry.offset : entry.end]
    data = written[header.data_offset :]
    assert header.digests == tuple(block_digest(data[b:e]) for b, e in split_blocks(len(data)))
    assert sum(entry.nbytes for entry in header.layout.entries) >= len(data.replace(b"\0", b""))
    assert (header.data_bytes, header.data_bytes) == told[-1]
    assert sorted(told) == told


@pytest.mark.parametrize("length", [0, 255, 257])
def test_a_tensor_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    """And what lies there by then has no header."""
    path = tmp_path / "model.halogen"
    spec = TensorSpec(name="t", dtype=DType.FP32, shape=(64,))
    with pytest.raises(ValueError, match=f"came with {length} bytes, not 256"):
        write_weights(path, [spec], ARCHITECTURE, lambda _: [bytes(length)])
    with pytest.raises(CorruptData):
        Header.decode(path.read_bytes())


def test_an_existing_file_is_never_rewritten(tmp_path: Path) -> None:
    """Immutable means that a second writer is refused."""
    path = tmp_path / "model.halogen"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        write_weights(path, [], ARCHITECTURE, lambda _: [])
    assert b"precious" == path.read_bytes()
