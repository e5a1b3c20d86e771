"""Layouts: aligned, gapless within a group, padded for direct reads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import ALIGNMENT, TensorSpec, plan
from tests.tiny_checkpoints import TinyShape
from tests.unit.checkpoint.strategies import tensor_specs


@given(tensor_specs(), st.integers(0, 5))
def test_groups_start_aligned_and_have_no_gap(specs: tuple[TensorSpec, ...], pages: int) -> None:
    """Every group or lone tensor starts on 4 KiB, and members of a group follow each other at once."""
    layout = plan(specs, pages * ALIGNMENT)
    assert [spec.name for spec in specs] == [entry.name for entry in layout.entries]
    for before, entry in itertools.pairwise(layout.entries):
        assert before.end <= entry.offset
        if entry.group and entry.group == before.group:
            assert before.end == entry.offset
        else:
            assert 0 == entry.offset % ALIGNMENT
    assert all(entry.end <= layout.data_offset + layout.data_bytes for entry in layout.entries)


@pytest.mark.parametrize(
    ("tensor_bytes", "data_bytes"),
    [
        (0, 0),
        (4, ALIGNMENT),
        (ALIGNMENT + 4, 2 * ALIGNMENT),
        (BLOCK_BYTES, BLOCK_BYTES),
        (BLOCK_BYTES + 4, 2 * BLOCK_BYTES),
    ],
)
def test_data_ends_where_a_direct_read_may_end(tensor_bytes: int, data_bytes: int) -> None:
    """Data is padded to 4 KiB, and to whole blocks once it is longer than one."""
    specs = [TensorSpec(name="t", dtype=DType.FP32, shape=(tensor_bytes // 4,))] if tensor_bytes else []
    assert data_bytes == plan(specs, 8192).data_bytes


def test_a_layer_is_stored_in_kernel_order() -> None:
    """q, k and v lie back to back, as do gate and up, so that each is one matrix to a kernel."""
    shape = TinyShape(num_hidden_layers=1)
    architecture = Architecture.from_config(shape.config(), shape.dtype)
    layout = plan(decoder_tensors(architecture), 0)
    groups = [
        (group, [entry.name.removeprefix("model.layers.0.").removesuffix(".weight") for entry in entries])
        for group, entries in itertools.groupby(layout.entries, key=lambda entry: entry.group)
        if group
    ]
    assert [
        ("model.layers.0.qkv", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("model.layers.0.gate_up", ["mlp.gate_proj", "mlp.up_proj"]),
    ] == groups


def test_a_tied_head_is_stored_once() -> None:
    """With tied embeddings there is no lm_head to store."""
    tied, untied = (
        {spec.name for spec in decoder_tensors(Architecture.from_config(shape.config(), shape.dtype))}
        for shape in (TinyShape(tie_word_embeddings=True), TinyShape())
    )
    assert {"lm_head.weight"} == untied - tied
