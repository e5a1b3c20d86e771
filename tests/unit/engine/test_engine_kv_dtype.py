"""What keys and values are stored in: the bytes of a block, whom pages are for, and what it costs in exactness."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels
from services.engine.kv_format import KvChoice, KvFormat
from tests.tiny_checkpoints import TinyShape
from tests.unit.engine.decoding import Answer, Decoding
from tests.unit.engine.test_engine_exactness import NEW, prompts, strayed_margins

KV_DTYPES: tuple[KvChoice, ...] = ("bf16", "fp16", "int8")
SHAPE = TinyShape(
    num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16, hidden_size=96
)
ARCHITECTURE = Architecture.from_config(SHAPE.config(), DType.BF16)


@pytest.mark.parametrize(
    ("choice", "computed_in", "expected", "head_bytes"),
    [
        ("auto", DType.BF16, DType.BF16, 512),
        ("auto", DType.FP32, DType.FP32, 1024),
        ("bf16", DType.FP32, DType.BF16, 512),
        ("fp16", DType.BF16, DType.FP16, 512),
        ("int8", DType.BF16, DType.INT8, 256 + 64),
    ],
)
def test_a_block_has_the_bytes_of_its_elements_and_scales(
    choice: KvChoice, computed_in: DType, expected: DType, head_bytes: int
) -> None:
    """16 tokens of 16 elements; in int8 a scale of 4 bytes for each token. Keys and values of 2 heads in 3 layers."""
    kv = KvFormat.of(ARCHITECTURE, choice, computed_in)
    assert (expected, head_bytes, 3 * 2 * 2 * head_bytes) == (kv.dtype, kv.head_bytes, kv.block_bytes)


def test_everything_that_counts_blocks_counts_those_of_the_dtype(
    artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """Block bytes, of which tickets, warm-ups and the arena's books are made; the pages' origin; the build on record.

    Fault injection: turns red when ModelOnArena or build_of takes the weights' dtype.
    """
    models = {
        choice: Decoding(artifacts["stories-v1"], kernels, "auto", kv_dtype=choice).model
        for choice in ("auto", *KV_DTYPES)
    }
    wide = models["bf16"].block_bytes
    head_dim = models["bf16"]._decoder.architecture.head_dim
    assert wide == models["auto"].block_bytes == models["fp16"].block_bytes
    assert wide // 2 + wide * 2 // head_dim == models["int8"].block_bytes
    expected = {"auto": "bf16", "bf16": "bf16", "fp16": "fp16", "int8": "int8"}
    assert expected == {choice: model.origin.dtype for choice, model in models.items()}
    told = {choice: model.built.build.kernels["kv_dtype"] for choice, model in models.items() if model.built}
    assert expected == told


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("model", ["stories-v1", "odd_sizes", "wide_heads"])
def test_the_same_bits_alone_and_together_in_every_dtype(
    model: str, kv_dtype: KvChoice, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """S-D11: nothing of it depends on what keys and values are stored in."""
    decoding = Decoding(artifacts[model], kernels, "auto", kv_dtype=kv_dtype)
    alone = decoding.alone(prompts(), NEW)
    assert alone == decoding.together(prompts(), NEW)
    assert alone == decoding.together(prompts(), NEW, chunk_tokens=7)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_blocks_that_hold_anything_do_no_harm(
    kv_dtype: KvChoice, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """Elements and scales are read only where they were written."""
    clean, dirty = (Decoding(artifacts["grouped"], kernels, "auto", kv_dtype=kv_dtype) for _ in range(2))
    dirty.model._blocks.fill_(0xFF)
    assert clean.together(prompts(), NEW, chunk_tokens=9) == dirty.together(prompts(), NEW, chunk_tokens=9)


@pytest.fixture(scope="module")
def exact(artifacts: dict[str, Path]) -> dict[str, list[Answer]]:
    """Greedy answers in float32 throughout."""
    return {
        model: Decoding(artifacts[model], PortableKernels(), "float32").together(prompts(), NEW)
        for model in ("stories-v1", "stories-v2")
    }


@pytest.mark.parametrize("model", ["stories-v1", "stories-v2"])
@pytest.mark.parametrize(("kv_dtype", "bound"), [("fp16", 0.03), ("bf16", 0.3), ("int8", 0.6)])
def test_what_a_dtype_costs_is_bounded(
    model: str,
    kv_dtype: KvChoice,
    bound: float,
    artifacts: dict[str, Path],
    exact: dict[str, list[Answer]],
    kernels: Kernels,
) -> None:
    """Float32 but for keys and values, on the float32 answer's own tokens.

    No logit is further from its own than the bound, and no choice differs where the margin is greater than twice that.

    Fault injection: turns red when int8's scales are taken over 16 tokens or over all heads.
    """
    reference = exact[model]
    decoding = Decoding(artifacts[model], kernels, "float32", kv_dtype=kv_dtype)
    forced = decoding.forced(prompts(), [answer.ids for answer in reference])
    error = max(
        float(np.abs(np.stack(one.logits) - np.stack(other.logits)).max())
        for one, other in zip(reference, forced, strict=True)
    )
    margins = strayed_margins(reference, forced)
    print(f"{model} {kv_dtype}: logits within {error:.4f}, {len(margins)} choices differ, margins {margins}")
    assert error <= bound
    assert [] == [margin for margin in margins if margin > 2 * bound]


def test_an_architecture_of_another_shape_has_another_block() -> None:
    """Nothing of it is taken from elsewhere."""
    kv = KvFormat.of(dataclasses.replace(ARCHITECTURE, head_dim=128), "int8", DType.BF16)
    assert 3 * 2 * 2 * (16 * 128 + 64) == kv.block_bytes
