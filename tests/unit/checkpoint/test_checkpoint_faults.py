"""The fault matrix: whatever is done to a weight file, the refusal names file, region and remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.header import MAX_JSON_BYTES, PREAMBLE, Header
from services.common.checkpoint.layout import TensorEntry
from services.common.checkpoint.quantisation import check_finite
from services.common.checkpoint.verified_artifact import verify_weights
from services.common.checkpoint.writer import write_weights
from services.common.errors import CorruptData, HalogenError, InvalidRequest
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact
from tests.unit.checkpoint.forged_artifact import LIES, make_forged_artifact
from tests.unit.checkpoint.scaled_artifact import SPECS, make_scaled_artifact
from tests.unit.checkpoint.strategies import ARCHITECTURE


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> StoredArtifact:
    """Three digest blocks; whoever damages it mends it."""
    return StoredArtifact(*make_tiny_artifact(tmp_path_factory.mktemp("faults"), MULTI_BLOCK))


@pytest.fixture
def weights(artifact: StoredArtifact) -> Iterator[Path]:
    path = artifact.path(artifact.manifest.weights)
    yield path
    verify_weights(artifact)


@pytest.fixture(scope="module")
def header(artifact: StoredArtifact) -> Header:
    return Header.decode(artifact.path(artifact.manifest.weights).read_bytes())


def refusal(artifact: StoredArtifact, kind: type[HalogenError] = CorruptData) -> HalogenError:
    """What the file is refused with; file and remedy are in its words, file and region in its facts."""
    with pytest.raises(kind) as caught:
        verify_weights(artifact)
    assert re.search(r"model\.halogen\b.*; (fetch or )?convert the|halogen convert", caught.value.message)
    if kind is CorruptData:
        assert "model.halogen" == caught.value.metadata["file"]
    return caught.value


def damaged(path: Path, offset: int, content: bytes) -> Callable[[], None]:
    """Writes over the file; returns what mends it."""
    with path.open("r+b", buffering=0) as file:
        before = os.pread(file.fileno(), len(content), offset)
        os.pwrite(file.fileno(), content, offset)

    def mend() -> None:
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), before, offset)

    return mend


def boundaries(header: Header) -> list[int]:
    """Where the file's parts begin and end: the preamble's fields, the JSON, the padding, every tensor, the file."""
    json_end = PREAMBLE.size + len(header._json())
    ends = [0, 1, 8, 12, 16, 24, 56, 63, 64, json_end, header.data_offset - 1, header.data_offset]
    ends += [at for entry in header.layout.entries for at in (entry.offset, entry.end)]
    return [*sorted({*ends, header.file_bytes - 1} - {header.file_bytes}), header.file_bytes + 4096]


def test_a_file_of_another_length_is_refused(artifact: StoredArtifact, weights: Path, header: Header) -> None:
    """Cut at every structural boundary, or longer: before a byte is read.

    Fault injection: leave out `_check_size` in `read_header`.
    """
    content = weights.read_bytes()
    for length in boundaries(header):
        os.truncate(weights, length)
        fault = refusal(artifact)
        assert f"has {length} bytes, not {header.file_bytes}" in fault.message
        assert "length" == fault.metadata["region"]
    weights.write_bytes(content)


def test_a_reader_of_the_bytes_alone_refuses_every_cut(weights: Path, header: Header) -> None:
    """Without a manifest that tells the length, a header that is not whole is refused all the same."""
    content = weights.read_bytes()[: header.data_offset]
    for length in (at for at in boundaries(header) if at < header.data_offset):
        with pytest.raises(CorruptData) as caught:
            Header.decode(content[:length])
        assert caught.value.metadata["region"] == ("preamble" if length < PREAMBLE.size else "header")


@pytest.mark.parametrize(
    ("offset", "content", "kind", "told"),
    [
        (0, b"\x88", CorruptData, "preamble: not a weight file"),
        (0, bytes(64), CorruptData, "preamble: not a weight file"),
        (8, b"\x03", InvalidRequest, r"of format version 3\.1; this build reads version 2\.1"),
        (12, b"\x00", InvalidRequest, r"of format version 2\.0"),
        (16, (1 << 63).to_bytes(8, "little"), CorruptData, f"a header of {1 << 63} bytes; the most is {MAX_JSON_BYTES}"),
        (16, b"\x01", CorruptData, "header: its bytes do not match"),
        (24, b"\xaa\xbb", CorruptData, "header: its bytes do not match its sha256"),
        (56, b"\x01", CorruptData, "preamble: reserved bytes are not zero"),
        (64, b"[", CorruptData, "header: its bytes do not match its sha256"),
        (1000, b"\x00", CorruptData, "header: its bytes do not match its sha256"),
    ],
)  # fmt: skip
def test_a_damaged_header_is_refused(
    artifact: StoredArtifact, weights: Path, offset: int, content: bytes, kind: type[HalogenError], told: str
) -> None:
    """Magic, version, revision, length, digest, reserved bytes, JSON."""
    mend = damaged(weights, offset, content)
    assert re.search(told, refusal(artifact, kind).message)
    mend()


def first_and_last_byte(entry: TensorEntry) -> tuple[int, int]:
    return entry.offset, entry.end - 1


def test_a_flipped_bit_in_any_tensor_is_refused(
    artifact: StoredArtifact, weights: Path, header: Header
) -> None:
    """In the first block and in the last block of each tensor; the refusal names block and tensors.

    Fault injection: compare no digests in `verify_weights`.
    """
    for entry in header.layout.entries:
        for position in first_and_last_byte(entry):
            byte = weights.read_bytes()[position]
            mend = damaged(weights, position, bytes([byte ^ 0x10]))
            fault, block = refusal(artifact), (position - header.data_offset) // BLOCK_BYTES
            assert fault.message.startswith(f"model.halogen: block {block} of 3 does not match its digest")
            assert ("data", str(block)) == (fault.metadata["region"], fault.metadata["block"])
            assert entry in header.tensors_in_block(block)
            mend()


def test_padding_is_part_of_the_file(artifact: StoredArtifact, weights: Path, header: Header) -> None:
    """Of the header and of the data: nobody hides anything there."""
    mend = damaged(weights, header.data_offset - 1, b"\x01")
    assert "header padding" == refusal(artifact).metadata["region"]
    mend()
    mend = damaged(weights, header.file_bytes - 1, b"\x01")
    assert "2" == refusal(artifact).metadata["block"]
    mend()


@pytest.mark.parametrize("scale", ["007e", "007c", "00fc", "ff7f"])
def test_a_scale_that_is_no_finite_number_is_refused(tmp_path: Path, scale: str) -> None:
    """Though every digest is right: NaN, either infinity; by the reader, and by the writer before.

    Fault injection: leave out `_check_scales` in `read_header`.
    """
    scales = bytes.fromhex(f"003c {scale}")
    stored = StoredArtifact(*make_scaled_artifact(tmp_path, scales))
    fault = refusal(stored)
    assert "scales" == fault.metadata["region"]
    assert "tensor s holds a scale that is not a finite number" in fault.message
    with pytest.raises(ValueError, match="not a finite number"):
        write_weights(tmp_path / "w", SPECS, ARCHITECTURE, lambda e: [scales if e.name == "s" else bytes(4)])


@pytest.mark.parametrize("case", LIES)
def test_a_table_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    """Though sha256 and manifest vouch for it: whatever contradicts itself is no header.

    Fault injection: leave out `check_table` in `Header._from_fields`.
    """
    lie, told = LIES[case]
    fault = refusal(StoredArtifact(*make_forged_artifact(tmp_path, lie)))
    assert "header" == fault.metadata["region"]
    assert told in fault.message


def test_finite_scales_are_let_pass(tmp_path: Path) -> None:
    """Zero, the least and the largest are numbers."""
    for index, scales in enumerate(("0000 0080", "0100 ff7b")):
        verify_weights(StoredArtifact(*make_scaled_artifact(tmp_path / str(index), bytes.fromhex(scales))))
    check_finite(b"", SPECS[1])
