"""The decoder's numbers: transformers' tokens, and the same bits however requests are batched and cut."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels
from services.engine.model.weights import DTypeChoice
from tests.unit.engine.decoding import Answer, Decoding, Prompt

LENGTHS = (1, 5, 15, 16, 17, 33, 100, 150)
NEW = 24
ALL_MODELS = ["stories-v1", "stories-v2", "grouped", "odd_sizes", "wide_heads", "biased"]


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[Prompt]:
    rng = np.random.default_rng(11)
    return [rng.integers(1, 512, length).tolist() for length in lengths]


@functools.cache
def references(checkpoint: Path) -> list[tuple[list[int], float]]:
    """What transformers generates greedily in float32, and the least margin between its first two logits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        return [reference(model, prompt) for prompt in prompts()]


def reference(model: Any, prompt: Prompt) -> tuple[list[int], float]:
    out = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    top = torch.stack(out.logits).squeeze(1).topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), float((top[:, 0] - top[:, 1]).min())


@pytest.mark.parametrize("model", ALL_MODELS)
def test_float32_tokens_are_those_of_transformers(
    model: str, checkpoints: dict[str, Path], artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """Every token of every prompt, in one batch whose prompts are computed in chunks of 40."""
    decoding = Decoding(artifacts[model], kernels, "float32")
    answers = decoding.together(prompts(), NEW, chunk_tokens=40)
    told = references(checkpoints[model])
    for prompt, answer, (expected, margin) in zip(prompts(), answers, told, strict=True):
        assert expected == answer.ids, f"prompt of {len(prompt)}, least margin {margin}"


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("model", ["stories-v1", "grouped", "odd_sizes", "wide_heads", "biased"])
def test_the_same_bits_alone_and_together_in_chunks_and_in_one_piece(
    model: str, dtype: DTypeChoice, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """S-D11: logits are equal bit for bit alone, in a batch of 8, in reverse order and in chunks of 1, 7 and 512.

    Turns red when: PortableOperations.linear does not pad, or native tile() reverses the lanes of one-row sums.
    """
    decoding = Decoding(artifacts[model], kernels, dtype)
    alone = decoding.alone(prompts(), NEW)
    assert alone == decoding.together(prompts(), NEW)
    assert alone[::-1] == decoding.together(prompts()[::-1], NEW)
    assert alone == decoding.together(prompts(), NEW, chunk_tokens=7)
    assert alone[:5] == decoding.alone(prompts()[:5], NEW, chunk_tokens=1)
    assert decoding.together(prompts((16,) * 64), 3) == decoding.alone(prompts((16,) * 64), 3)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_keys_and_values_left_by_another_request_do_no_harm(
    dtype: DTypeChoice, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """An arena full of NaN answers like a fresh one: nothing is read before it is written."""
    clean = Decoding(artifacts["grouped"], kernels, dtype)
    dirty = Decoding(artifacts["grouped"], kernels, dtype)
    with torch.inference_mode():
        dirty.model._blocks.fill_(0xFF)  # NaN in every type of floats
    expected = clean.together(prompts(), NEW, chunk_tokens=9)
    assert expected == dirty.together(prompts(), NEW, chunk_tokens=9)
    assert all(np.isfinite(answer.logits).all() for answer in expected)


def test_both_sets_of_kernels_agree_closely(artifacts: dict[str, Path], kernels: Kernels) -> None:
    """In float32 any two sets differ by rounding only."""
    ours = Decoding(artifacts["stories-v1"], kernels, "float32").together(prompts(), NEW)
    portable = Decoding(artifacts["stories-v1"], PortableKernels(), "float32").together(prompts(), NEW)
    for one, other in zip(ours, portable, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.logits, other.logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["stories-v1", "stories-v2"])
def test_bfloat16_strays_from_the_reference_only_where_it_hardly_matters(
    model: str, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """On the float32 answer's own tokens: where the argmax differs, the reference's margin is at most 0.5."""
    exact = Decoding(artifacts[model], kernels, "float32").together(prompts(), NEW)
    forced = Decoding(artifacts[model], kernels, "bfloat16").forced(prompts(), [a.ids for a in exact])
    assert [] == [margin for margin in strayed_margins(exact, forced) if margin > 0.5]


def strayed_margins(reference: list[Answer], ours: list[Answer]) -> list[float]:
    return [
        float(logits[expected] - logits[chosen])
        for one, other in zip(reference, ours, strict=True)
        for logits, expected, chosen in zip(one.logits, one.ids, other.ids, strict=True)
        if expected != chosen
    ]
