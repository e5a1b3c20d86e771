"""A real model's tokens are transformers' tokens, alone, batched and chunked; bfloat16 strays only where it hardly matters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final, NamedTuple

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
# Every prompt in a batch of 8 of mixed lengths: the first with the fourth, the seventh and so on.
BATCHES: Final = tuple(tuple((start + 3 * i) % len(LENGTHS) for i in range(8)) for start in range(3))
ALONE: Final = (4, 10, 19)  # few: alone, a stream has all weights read for every token
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
    """What transformers chooses in float32 after a prompt and after each token of our answer, and from which logits."""

    ids: list[int]
    logits: npt.NDArray[np.float32]  # [NEW, vocabulary]


@pytest.fixture(scope="module")
def prompts(smollm2: DemoModel) -> list[Prompt]:
    """Twenty prompts of text, each beginning somewhere else, cut to their lengths."""
    tokenizer = Tokenizer.from_file(str(smollm2.hugging_face / "tokenizer.json"))
    ids = tokenizer.encode(TEXT * 15).ids
    return [ids[7 * i : 7 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def float32(smollm2: DemoModel) -> Decoding:
    return decoding(smollm2.artifact, "float32")


@pytest.fixture(scope="module")
def bfloat16(smollm2: DemoModel) -> Decoding:
    return decoding(smollm2.artifact, "auto")


@pytest.fixture(scope="module")
def batched(float32: Decoding, prompts: list[Prompt]) -> list[Answer]:
    """Our answers in float32, in batches of 8: the one with the longest prompt in chunks of 100, the others of 512."""
    answers: dict[int, Answer] = {}
    for batch, chunk_tokens in zip(BATCHES, (512, 100, 512), strict=True):
        together = float32.together([prompts[i] for i in batch], NEW, chunk_tokens=chunk_tokens)
        answers |= dict(zip(batch, together, strict=True))
    return [answers[i] for i in range(len(prompts))]


@pytest.fixture(scope="module")
def transformers_model(smollm2: DemoModel) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_pretrained(smollm2.hugging_face, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference(transformers_model: Any, prompts: list[Prompt], batched: list[Answer]) -> list[Reference]:
    """Transformers' choices along our answers.

    Its `generate` chooses what a pass prefers after the prompt and all that it has chosen. So its answer is ours if, and
    only if, one pass over the prompt and our answer prefers each of our tokens where it stands.
    """
    return [
        _choices(transformers_model, prompt, answer.ids)
        for prompt, answer in zip(prompts, batched, strict=True)
    ]


def _choices(model: Any, prompt: Prompt, answer: list[int]) -> Reference:
    with torch.inference_mode():
        told = model(torch.tensor([[*prompt, *answer[:-1]]]), logits_to_keep=NEW, use_cache=False)
    logits = told.logits[0].numpy()
    return Reference(logits.argmax(axis=1).tolist(), logits)


def _generate(model: Any, prompt: Prompt) -> list[int]:
    shown = torch.tensor([prompt])
    with torch.inference_mode():
        told = model.generate(
            shown,
            attention_mask=torch.ones_like(shown),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    answer: list[int] = told[0, len(prompt) :].tolist()
    return answer


def decoding(artifact: Path, dtype: DTypeChoice) -> Decoding:
    kernels = choose_kernels("auto", 1)
    return Decoding(artifact, kernels, dtype, arena_bytes=1 << 30, max_model_len=2048)


@pytest.fixture(scope="module")
def forced(bfloat16: Decoding, prompts: list[Prompt], reference: list[Reference]) -> list[Answer]:
    """What we choose in bfloat16 after the reference's tokens, in batches of 8 in chunks of 512."""
    answers: dict[int, Answer] = {}
    for batch in BATCHES:
        told = bfloat16.forced([prompts[i] for i in batch], [reference[i].ids for i in batch])
        answers |= dict(zip(batch, told, strict=True))
    return [answers[i] for i in range(len(prompts))]


def test_float32_ids_are_those_of_transformers(
    transformers_model: Any, prompts: list[Prompt], batched: list[Answer], reference: list[Reference]
) -> None:
    """20 prompts of 5 to 1,500 tokens, 64 new ones each, in batches of 8, in chunks of 100 and 512.

    Fault injection: turns red when native norm_row() leaves out its weight.
    """
    assert [answer.ids for answer in reference] == [answer.ids for answer in batched]
    assert _generate(transformers_model, prompts[0]) == batched[0].ids
    print(f"exactness in float32: {len(prompts)} prompts, {NEW} tokens each, equal to transformers' generate")


def test_float32_answers_are_the_same_bits_alone_and_batched(
    float32: Decoding, prompts: list[Prompt], batched: list[Answer]
) -> None:
    """Prompts of 16 to 1,500 tokens, alone in one piece: ids and logits, and so transformers' ids as well.

    Fault injection: turns red when native tile() doubles what it adds to one row alone.
    """
    alone = float32.alone([prompts[i] for i in ALONE], NEW, chunk_tokens=MOST)
    assert [batched[i] for i in ALONE] == alone


def test_bfloat16_strays_only_where_the_reference_hardly_prefers_its_token(
    reference: list[Reference], forced: list[Answer]
) -> None:
    """Teacher-forced on the reference's tokens: where our argmax differs, the reference's margin is at most 0.5.

    Fault injection: turns red when dot_pairs() leaves out the second of each pair.
    """
    margins = [
        float(logits[expected] - logits[chosen])
        for answer, ours in zip(reference, forced, strict=True)
        for logits, expected, chosen in zip(answer.logits, answer.ids, ours.ids, strict=True)
        if expected != chosen
    ]
    print(
        f"exactness in bfloat16: {len(margins)} of {NEW * len(reference)} choices differ, margins to "
        f"{max(margins, default=0):.3f}"
    )
    assert [] == [margin for margin in margins if margin > 0.5]


def test_bfloat16_answers_are_the_same_bits_alone_and_batched(
    bfloat16: Decoding, prompts: list[Prompt], reference: list[Reference], forced: list[Answer]
) -> None:
    """S-D11 on a real model: ids and logits, alone in one piece against batches of 8 in chunks of 512.

    All follow the reference's tokens: what has the same logits after the same tokens chooses the same ones.

    Fault injection: as in float32.
    """
    for i in ALONE:
        assert [forced[i]] == bfloat16.forced([prompts[i]], [reference[i].ids], chunk_tokens=MOST)
