"""The file derived for a kernel: the same model, every tensor of it in its place, and bound to what it was made of."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.checkpoint.layout import ALIGNMENT, TensorSpec
from services.common.checkpoint.manifest import Manifest, ManifestFile, Role
from services.common.checkpoint.pack import pack, pack_gated
from services.common.checkpoint.packed_file import PackedFile, expected_header
from services.common.checkpoint.requirements import ANYWHERE, Requirements
from services.common.errors import CorruptData, Unsupported

LLAMA: Final = Architecture(
    model_type="llama",
    dtype=DType.BF16,
    hidden_size=6,
    intermediate_size=37,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=14,
    vocab_size=70,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
)
UNTIED: Final = dataclasses.replace(LLAMA, tie_word_embeddings=False)
QWEN: Final = dataclasses.replace(LLAMA, model_type="qwen2", head_dim=16)
MODELS: Final = st.sampled_from([LLAMA, UNTIED, QWEN])


def whole_of(architecture: Architecture) -> tuple[Header, npt.NDArray[np.uint8]]:
    """A file without a zero byte in any tensor."""
    header = Header.lay_out(decoder_tensors(architecture), architecture)
    content = np.zeros(header.file_bytes, np.uint8)
    numbers = np.random.default_rng(0)
    for entry in header.layout.entries:
        content[entry.offset : entry.end] = numbers.integers(1, 255, entry.nbytes, np.uint8)
    return header, content


def derive(file: PackedFile, whole: npt.NDArray[np.uint8], cuts: set[int]) -> npt.NDArray[np.uint8]:
    made = np.zeros(file.header.file_bytes, np.uint8)
    for begin, end in itertools.pairwise(sorted({0, *cuts, len(whole)})):
        for move in file.moves_of(begin, end):
            move.put(whole[begin:end].data, begin, made.data)
    return made


def expected_of(header: Header, whole: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.uint16]:
    """The packed tensor of that name, by the definition of each."""

    def plain(*names: str) -> npt.NDArray[np.uint16]:
        entries = [header.tensors[each] for each in names]
        parts = [whole[e.offset : e.end].view(np.uint16).reshape(e.shape) for e in entries]
        return np.concatenate(parts)

    layer, _, kind = name.removesuffix(".packed").rpartition(".")
    if not name.endswith(".packed"):
        return plain(name)
    if kind == "qkv_proj":
        return pack(plain(*(f"{layer}.{part}_proj.weight" for part in "qkv")))
    if kind == "gate_up_proj":
        return pack_gated(plain(f"{layer}.gate_proj.weight"), plain(f"{layer}.up_proj.weight"))
    if kind == "lm_head":
        tied = header.architecture.tie_word_embeddings
        return pack(plain("model.embed_tokens.weight" if tied else "lm_head.weight"))
    return pack(plain(f"{layer}.{kind}.weight"))


CUTS = st.sets(st.integers(2048, 16_000).map(lambda pair: 2 * pair), max_size=8)


@given(MODELS, CUTS)
def test_every_tensor_is_packed_however_the_file_is_cut(architecture: Architecture, cuts: set[int]) -> None:
    """Every tensor as its definition has it, alone on its pages, zeros between, and nothing else.

    Fault injection: turns red when the rows of k go where those of q are.
    """
    header, whole = whole_of(architecture)
    file = PackedFile.plan(header)
    made = derive(file, whole, cuts)
    expected = np.zeros_like(made)
    for entry in file.header.layout.entries:
        assert entry.name.endswith(".bias") or 0 == entry.offset % ALIGNMENT
        content = expected_of(header, whole, entry.name)
        assert content.shape == entry.shape
        expected[entry.offset : entry.end] = content.ravel().view(np.uint8)
    assert expected.tobytes() == made.tobytes()


def manifest_of(header: Header) -> Manifest:
    weights = ManifestFile(
        path="model.halogen", size_bytes=header.file_bytes, sha256=header.identity, role=Role.WEIGHTS
    )
    return Manifest(header.architecture, (weights,), Requirements.of(header, ANYWHERE))


@given(MODELS)
def test_a_derived_header_says_what_it_was_made_of(architecture: Architecture) -> None:
    """It is a header like any other, and the one that an artifact's manifest alone foretells.

    Fault injection: turns red when the origin is left out of the header's JSON.
    """
    header, _ = whole_of(architecture)
    made = PackedFile.plan(header).header
    assert made == Header.decode(made.encode())
    assert made == expected_header(manifest_of(header), PACKED32)
    assert made.derived is not None
    assert (header.identity, PACKED32) == (made.derived.source, made.derived.layout)
    assert header.graph == made.model_graph
    assert header.graph != made.graph


def test_another_source_makes_another_identity() -> None:
    """Files derived from two artifacts differ in their headers, also where shapes are the same.

    Fault injection: turns red when the source is not part of the origin.
    """
    header, _ = whole_of(LLAMA)
    other = header.with_digests((b"\1" * 32,) * len(header.digests))
    assert PackedFile.plan(header).header.identity != PackedFile.plan(other).header.identity


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_other_dtypes_are_not_packed(dtype: DType) -> None:
    """Weights that no kernel reads in panels stay as they are stored."""
    header, _ = whole_of(dataclasses.replace(LLAMA, dtype=dtype))
    with pytest.raises(Unsupported, match="only bf16 is packed"):
        PackedFile.plan(header)


def test_only_a_decoder_of_exactly_its_tensors_is_packed() -> None:
    """A table with a tensor more, or of another shape, is left to whoever refuses it."""
    more = TensorSpec(name="more", dtype=DType.BF16, shape=(2,))
    with pytest.raises(Unsupported, match="not exactly those of the decoder"):
        PackedFile.plan(Header.lay_out([*decoder_tensors(LLAMA), more], LLAMA))


def test_an_unknown_layout_is_not_derived() -> None:
    """An engine of a later build is told so."""
    header, _ = whole_of(LLAMA)
    with pytest.raises(Unsupported, match=r"packed64-v1\.x86"):
        expected_header(manifest_of(header), KernelLayout("packed64-v1", "x86"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"source": "0" * 63}, "64 hexadecimal digits"),
        ({"layout": KernelLayout("Packed/32", "x86")}, "no plain name"),
    ],
)
def test_an_origin_that_is_none_is_refused(change: dict[str, Any], fault: str) -> None:
    """Nothing that could name a path, or no file at all, passes for an origin."""
    made = PackedFile.plan(whole_of(LLAMA)[0]).header
    assert made.derived is not None
    wrong = dataclasses.replace(made, derived=made.derived._replace(**change))
    with pytest.raises(CorruptData, match=fault):
        Header.decode(wrong.encode())
