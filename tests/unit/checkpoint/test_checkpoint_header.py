"""Headers: what is written is read back, and nothing else is taken for a header."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint import canonical
from services.common.checkpoint.digest import BLOCK_BYTES, DIGEST_BYTES, sha256_hex
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.file_format import MAGIC
from services.common.checkpoint.header import (
    MAX_JSON_BYTES,
    PREAMBLE,
    REVISION,
    VERSION,
    Header,
    header_bytes,
)
from services.common.checkpoint.layout import ALIGNMENT, Shard, TensorSpec
from services.common.checkpoint.quantisation import Quantisation
from services.common.errors import CorruptData, HalogenError, InvalidRequest
from tests.unit.checkpoint.strategies import ARCHITECTURE, tensor_specs

SPECS = (
    TensorSpec(name="embed", dtype=DType.BF16, shape=(512, 64), shard=Shard.ROWS),
    TensorSpec(name="q", dtype=DType.BF16, shape=(64, 64), group="qkv"),
    TensorSpec(name="k", dtype=DType.BF16, shape=(32, 64), group="qkv"),
    TensorSpec(name="norm", dtype=DType.FP32, shape=(64,)),
    TensorSpec(
        name="packed",
        dtype=DType.INT4,
        shape=(4, 64),
        quantisation=Quantisation(scales="scales", block=(1, 32)),
    ),
    TensorSpec(name="scales", dtype=DType.FP16, shape=(4, 2)),
)


@given(tensor_specs(), st.data())
def test_a_header_is_read_back_as_written(specs: tuple[TensorSpec, ...], data: st.DataObject) -> None:
    """Decoding what was encoded gives the same header, from the header alone and from a longer buffer."""
    blank = Header.lay_out(specs, ARCHITECTURE)
    digest = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
    header = blank.with_digests(tuple(data.draw(digest) for _ in blank.digests))
    encoded = header.encode()
    assert header == Header.decode(encoded) == Header.decode(memoryview(encoded + b"tensors"))
    assert header.data_offset == len(encoded) == header_bytes(encoded[: PREAMBLE.size])
    assert header.identity == Header.decode(encoded).identity


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    """Whatever the bytes are, the answer is one of our errors."""
    for start in (noise, MAGIC + noise, Header.lay_out(SPECS, ARCHITECTURE).encode()[: len(noise)] + noise):
        with pytest.raises(HalogenError):
            Header.decode(start)


@given(st.data())
def test_a_flipped_bit_anywhere_in_the_header_is_refused(data: st.DataObject) -> None:
    """Preamble, JSON and padding are all covered."""
    encoded = bytearray(Header.lay_out(SPECS, ARCHITECTURE).encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(HalogenError):
        Header.decode(encoded)


@pytest.mark.parametrize("length", [0, 1, 8, 9, 63, 64, 65, 500, ALIGNMENT - 1])
def test_a_truncated_header_is_refused(length: int) -> None:
    """A file that ends before its data begins is corrupt, wherever it ends."""
    with pytest.raises(CorruptData, match="fetch or convert"):
        Header.decode(Header.lay_out(SPECS, ARCHITECTURE).encode()[:length])


def test_a_torn_file_is_refused() -> None:
    """The header goes in last: a writer that was killed leaves zeros where it would be."""
    with pytest.raises(CorruptData, match="not a weight file"):
        Header.decode(bytes(2 * ALIGNMENT))


def test_an_absurd_length_is_refused_unread() -> None:
    """A length of 2^63 allocates nothing."""
    encoded = bytearray(Header.lay_out(SPECS, ARCHITECTURE).encode())
    for length in (1 << 63, MAX_JSON_BYTES + 1):
        encoded[16:24] = length.to_bytes(8, "little")
        with pytest.raises(CorruptData, match=f"claims a header of {length}"):
            header_bytes(encoded[: PREAMBLE.size])


def test_another_version_is_refused_by_its_number() -> None:
    """The message says which version it is and what to do."""
    encoded = bytearray(Header.lay_out(SPECS, ARCHITECTURE).encode())
    encoded[8] = 3
    with pytest.raises(InvalidRequest, match=r"format version 3.*halogen convert"):
        Header.decode(encoded)


def torch_zip() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", "")
    return buffer.getvalue()


def safetensors() -> bytes:
    text = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (safetensors(), "safetensors"),
        (torch_zip(), "PyTorch zip"),
        (pickle.dumps({"weight": [1.0]}, protocol=2), "PyTorch legacy pickle"),
        (b"GGUF\x03\x00\x00\x00" + bytes(16), "GGUF"),
    ],
)
def test_a_v1_file_is_recognised_and_the_remedy_named(content: bytes, name: str) -> None:
    """A file of another format is not called corrupt: it is to be converted."""
    with pytest.raises(InvalidRequest, match=f"{name} file.*halogen convert"):
        Header.decode(content)


def seal(fields: Any) -> bytes:
    """A header whose sha256 is right, whatever its fields are."""
    text = fields if isinstance(fields, bytes) else canonical.encode(fields)
    preamble = PREAMBLE.pack(MAGIC, VERSION, REVISION, len(text), bytes.fromhex(sha256_hex(text)))
    sealed = preamble + text
    return sealed.ljust(-(-len(sealed) // ALIGNMENT) * ALIGNMENT, b"\0")


def fields_of(header: Header) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(header._json())
    return fields


Change = Callable[[dict[str, Any]], object]

MALFORMED: dict[str, tuple[Change, str]] = {
    "field missing": (lambda f: f.pop("digests"), "no digests"),
    "field unknown": (lambda f: f.update(colour="red"), "unknown fields: colour"),
    "other block size": (lambda f: f.update(block_bytes=BLOCK_BYTES // 2), "block_bytes"),
    "other data offset": (lambda f: f.update(data_offset=f["data_offset"] * 2), "data_offset"),
    "negative data": (lambda f: f.update(data_bytes=-1), "data_bytes"),
    "digest missing": (lambda f: f["digests"].pop(), "0 digests for 1 blocks"),
    "digest short": (lambda f: f.update(digests=["ab"]), "64 hexadecimal"),
    "digest not hex": (lambda f: f.update(digests=["zz" * 32]), "hexadecimal"),
    "digest upper case": (lambda f: f.update(digests=["AB" * 32]), "hexadecimal"),
    "digests no list": (lambda f: f.update(digests="ab" * 32), "not a list"),
    "tensor no object": (lambda f: f.update(tensors=[7]), "tensor 0 is not an object"),
    "name empty": (lambda f: f["tensors"][0].update(name=""), "0 characters"),
    "name twice": (lambda f: f["tensors"][1].update(name="embed"), "embed is there twice"),
    "dtype unknown": (lambda f: f["tensors"][0].update(dtype="fp7"), "fp7"),
    "shard unknown": (lambda f: f["tensors"][0].update(shard="diagonal"), "diagonal"),
    "size zero": (lambda f: f["tensors"][0].update(shape=[0, 64]), "positive sizes"),
    "size true": (lambda f: f["tensors"][0].update(shape=[True, 64]), "positive sizes"),
    "rank absurd": (lambda f: f["tensors"][0].update(shape=[1] * 9), "up to 8"),
    "length not of shape": (lambda f: f["tensors"][0].update(nbytes=8), "embed has 8 bytes"),
    "offset before data": (lambda f: f["tensors"][0].update(offset=0), "embed lies outside"),
    "offset past data": (lambda f: f["tensors"][3].update(offset=1 << 30), "norm lies outside"),
    "offset a fraction": (lambda f: f["tensors"][0].update(offset=4096.0), "not a whole number"),
    "offset unaligned": (lambda f: f["tensors"][3].update(offset=f["tensors"][3]["offset"] + 256), "norm does not"),
    "overlap": (lambda f: f["tensors"][3].update(offset=f["tensors"][2]["offset"]), "norm overlaps k"),
    "order": (lambda f: f["tensors"].reverse(), "out of order"),
    "gap in group": (lambda f: f["tensors"][2].update(offset=f["tensors"][2]["offset"] + 4096, shape=[1], nbytes=2), "without a gap"),
    "quantisation no object": (lambda f: f["tensors"][4].update(quantisation=[]), "quantisation of tensor 4 is not an object"),
    "quantisation missing": (lambda f: f["tensors"][4].pop("quantisation"), "tensor 4 has no quantisation"),
    "scales missing": (lambda f: f["tensors"][4].update(quantisation=None), "packed is int4 and has no scales"),
    "scales elsewhere": (lambda f: f["tensors"][4]["quantisation"].update(scales="x"), "scaled by x, which is not there"),
    "biases elsewhere": (lambda f: f["tensors"][4]["quantisation"].update(biases="x"), "scaled by x, which is not there"),
    "scales of another shape": (lambda f: f["tensors"][4]["quantisation"].update(block=[1, 64]), r"scales is not \[4, 1\]"),
    "scales of another dtype": (lambda f: f["tensors"][5].update(dtype="int4", nbytes=4), "has no scales|is not .* of bf16"),
    "block of another rank": (lambda f: f["tensors"][4]["quantisation"].update(block=[32]), "packed has 2 axes"),
    "block zero": (lambda f: f["tensors"][4]["quantisation"].update(block=[0, 32]), "positive sizes"),
    "scales of floats": (lambda f: f["tensors"][3].update(quantisation={"scales": "scales", "biases": "", "block": [1]}), "norm is fp32, which takes no scales"),
    "int4 rows odd": (lambda f: f["tensors"][4].update(shape=[64, 4, 1]), "do not end on a byte"),
    "axis missing": (lambda f: f["tensors"][3].update(shard="columns"), "norm has no columns"),
    "block_rows zero": (lambda f: f.update(block_rows=0), "block_rows of header is 0"),
    "ranks that do not divide": (lambda f: f.update(tensor_parallel_size=3), "embed has 512 rows, not a multiple of 3 ranks"),
    "architecture of a field less": (lambda f: f["architecture"].pop("rope_theta"), "architecture has no rope_theta"),
    "architecture of endless layers": (lambda f: f["architecture"].update(num_hidden_layers=1 << 31), "not within 1 to 4096"),
    "architecture changed": (lambda f: f["architecture"].update(rope_theta=1.0), "part architecture is not that"),
    "table changed": (lambda f: f["tensors"][3].update(name="other"), "part tensors is not that"),
    "root changed": (lambda f: f["graph"].update(root="0" * 64), "root is not that of its parts"),
    "part changed": (lambda f: f["graph"].update(topology="0" * 64), "root is not that of its parts"),
    "group in two places": (lambda f: f["tensors"][0].update(group="x") or f["tensors"][3].update(group="x"), "two places"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_header_is_refused_by_name(case: str) -> None:
    """A header whose sha256 is right is still believed nothing that contradicts itself."""
    change, expected = MALFORMED[case]
    fields = fields_of(Header.lay_out(SPECS, ARCHITECTURE))
    change(fields)
    with pytest.raises(CorruptData, match=expected):
        Header.decode(seal(fields))


def test_json_that_is_not_canonical_is_refused() -> None:
    """One header has one text, so spaces, repeated keys and NaN cannot be."""
    fields = fields_of(Header.lay_out(SPECS, ARCHITECTURE))
    spaced = json.dumps(fields).encode()
    repeated = canonical.encode(fields).replace(b'"block_bytes"', b'"block_bytes":1,"block_bytes"', 1)
    for text in (spaced, repeated, b"[" * 100_000, b"NaN", b"\xff", b"", b"[]"):
        with pytest.raises(CorruptData):
            Header.decode(seal(text))


def test_the_layout_of_a_large_model_takes_its_own_length_into_account() -> None:
    """Offsets lengthen the JSON that moves the offsets; the result still fits exactly."""
    specs = [TensorSpec(name=f"t{i}", dtype=DType.FP32, shape=(4096, 4096)) for i in range(300)]
    header = Header.lay_out(specs, ARCHITECTURE)
    assert header == Header.decode(header.encode())
    assert header.data_offset == header.layout.entries[0].offset
