"""A real model's tokens are transformers' tokens, alone, batched and chunked; bfloat16 strays only where it hardly matters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from services.cli.demo import DemoModel
from services.engine.kernels.choice import choose_kernels
from services.engine.model.weights import DTypeChoice
from tests.unit.engine.decoding import Answer, Decoding, Prompt

NEW = 64
# With 64 new tokens each: across 16, across 512, across the chunk of 512 and several of them.
LENGTHS = (5, 9, 12, 15, 16, 17, 24, 33, 48, 64, 90, 128, 200, 300, 400, 470, 505, 513, 900, 1500)
MOST = 1600
SIMILAR = (
    slice(0, 10),
    slice(10, 15),
    slice(15, 18),
    slice(18, 19),
    slice(19, 20),
)  # little is padded in each
TEXT = """The lighthouse keeper wrote down the weather every morning, and the fishermen came to read it.
Wind from the north-west, 14 knots; clear until noon. How deep is the harbour at low tide?
She had counted 37 steps from the door to the lamp, and never once had she counted 38.
Water boils at 100 degrees Celsius at sea level, but on a high mountain it boils sooner.
"Where have you been?" he asked. "To the market," she said, "for bread, salt and two lemons."
def area(width, height): return width * height
In 1687 a book was printed that explained why the moon does not fall. What is the capital of France?
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("smollm2")]


class Reference(NamedTuple):
    """What transformers generates greedily in float32, and the logits that it chose from."""

    ids: list[int]
    logits: npt.NDArray[np.float32]  # [NEW, vocabulary]


@pytest.fixture(scope="module")
def prompts(smollm2: DemoModel) -> list[Prompt]:
    """Twenty prompts of text, each beginning somewhere else, cut to their lengths."""
    tokenizer = Tokenizer.from_file(str(smollm2.hugging_face / "tokenizer.json"))
    ids = tokenizer.encode(TEXT * 15).ids
    return [ids[7 * i : 7 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def alone(smollm2: DemoModel, prompts: list[Prompt]) -> list[Answer]:
    """Our answers in float32, one prompt at a time, each computed in one piece."""
    return decoding(smollm2.artifact, "float32").alone(prompts, NEW, chunk_tokens=MOST)


@pytest.fixture(scope="module")
def reference(smollm2: DemoModel, prompts: list[Prompt]) -> list[Reference]:
    """Transformers' own generate, prompts of similar lengths together, padded on the left as it wants them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(smollm2.hugging_face, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        return [answer for which in SIMILAR for answer in _generate(model, prompts[which])]


def _generate(model: Any, prompts: list[Prompt]) -> list[Reference]:
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    shown = [[0] * more + list(prompt) for more, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * more + [1] * len(prompt) for more, prompt in zip(padding, prompts, strict=True)]
    with torch.inference_mode():
        told = model.generate(
            torch.tensor(shown),
            attention_mask=torch.tensor(mask),
            max_new_tokens=NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    ids, logits = told.sequences[:, longest:].tolist(), torch.stack(told.logits, dim=1).numpy()
    return [Reference(*answer) for answer in zip(ids, logits, strict=True)]


def decoding(artifact: Path, dtype: DTypeChoice) -> Decoding:
    kernels = choose_kernels("auto", 1)
    return Decoding(artifact, kernels, dtype, arena_bytes=1 << 30, max_model_len=2048)


def in_batches_of_8(model: Decoding, prompts: list[Prompt], chunk_tokens: int) -> list[Answer]:
    """Every prompt in a batch of 8 of mixed lengths: the first with the eighth, the fifteenth and so on."""
    answers: dict[int, Answer] = {}
    for start in range(3):
        batch = [(start + 3 * i) % len(prompts) for i in range(8)]
        together = model.together([prompts[i] for i in batch], NEW, chunk_tokens=chunk_tokens)
        answers |= dict(zip(batch, together, strict=True))
    return [answers[i] for i in range(len(prompts))]


def test_float32_ids_are_those_of_transformers(
    smollm2: DemoModel, prompts: list[Prompt], alone: list[Answer], reference: list[Reference]
) -> None:
    """20 prompts of 5 to 1,500 tokens, 64 new ones each: alone in one piece, in batches of 8, in chunks."""
    assert [answer.ids for answer in reference] == [answer.ids for answer in alone]
    model = decoding(smollm2.artifact, "float32")
    assert alone == in_batches_of_8(model, prompts, chunk_tokens=512)
    assert alone[-4:] == model.together(prompts[-4:], NEW, chunk_tokens=100)
    print(f"exactness in float32: {len(prompts)} prompts, {NEW} tokens each, equal to transformers' generate")


def test_bfloat16_strays_only_where_the_reference_hardly_prefers_its_token(
    smollm2: DemoModel, prompts: list[Prompt], reference: list[Reference]
) -> None:
    """Teacher-forced on the reference's tokens: where our argmax differs, the reference's margin is at most 0.5."""
    model = decoding(smollm2.artifact, "auto")
    forced = model.forced(prompts, [answer.ids for answer in reference])
    margins = [
        float(logits[expected] - logits[chosen])
        for answer, ours in zip(reference, forced, strict=True)
        for logits, expected, chosen in zip(answer.logits, answer.ids, ours.ids, strict=True)
        if expected != chosen
    ]
    print(
        f"exactness in bfloat16: {len(margins)} of {NEW * len(prompts)} choices differ, margins to {max(margins):.3f}"
    )
    assert [] == [margin for margin in margins if margin > 0.5]


def test_bfloat16_answers_are_the_same_bits_alone_and_batched(
    smollm2: DemoModel, prompts: list[Prompt]
) -> None:
    """S-D11 on a real model: ids and logits, alone in one piece against batches of 8 in chunks of 512."""
    model = decoding(smollm2.artifact, "auto")
    assert model.alone(prompts, NEW, chunk_tokens=MOST) == in_batches_of_8(model, prompts, chunk_tokens=512)
