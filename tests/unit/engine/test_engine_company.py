"""S-D11: an answer has the same bits in every company, in one engine: tokens, logprobs, and all logits behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from services.engine.kernels.protocol import Kernels
from services.engine.model.weights import DTypeChoice
from services.engine.preemption import Way as SetBackBy
from tests.unit.engine.asker import NEW, Asked, Way, asker

LENGTHS: Final = (1, 5, 15, 16, 17, 33, 48, 49, 64, 90, 110, 150)
COMMON: Final = 36  # tokens that the longer ones begin with
ALONE: Final = Way()
WAYS: Final = (
    Way(chunk_tokens=7),
    Way(finds_pages=True),
    Way(chunk_tokens=29, finds_pages=True, set_back=SetBackBy.SWAP),
    Way(chunk_tokens=29, set_back=SetBackBy.RECOMPUTE),
    Way(8),
    Way(8, chunk_tokens=29),
    Way(8, finds_pages=True),
    Way(8, set_back=SetBackBy.SWAP),
    Way(8, chunk_tokens=29, finds_pages=True, set_back=SetBackBy.RECOMPUTE),
    Way(64),
    Way(64, chunk_tokens=257),
    Way(64, finds_pages=True),
    Way(64, set_back=SetBackBy.RECOMPUTE),
    Way(64, chunk_tokens=257, finds_pages=True, set_back=SetBackBy.SWAP),
)


def asked() -> list[Asked]:
    """Twelve prompts, each asked greedily and with a seed; half of them begin alike."""
    rng = np.random.default_rng(17)
    common = rng.integers(1, 512, COMMON).tolist()
    prompts = [
        [*common, *rng.integers(1, 512, length).tolist()][:length]
        if length > COMMON
        else rng.integers(1, 512, length).tolist()
        for length in LENGTHS
    ]
    return [
        each
        for number, prompt in enumerate(prompts)
        for each in (Asked(prompt), Asked(prompt, temperature=0.9, seed=100 + number))
    ]


@pytest.mark.parametrize("dtype", ["float32", "auto"])
async def test_s_d11_an_answer_has_the_same_bits_in_every_company(
    dtype: DTypeChoice, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """S-D11: alone and in batches of 8 and 64, in one piece and in chunks, with kept pages and without, set back or not.

    Fault injection: turns red when `Job.come_back` does not put back what was saved, or `uniform` counts its calls in
    place of positions.
    """
    async with asker(artifacts["grouped"], kernels, dtype) as it:
        alone = [answer for [answer] in await it.ask(asked(), ALONE)]
        assert {NEW} == {len(part) for answer in alone for part in (answer.ids, answer.logits)}
        assert len({answer.ids for answer in alone}) > len(LENGTHS), "seeds choose other tokens"
        await it.fill(asked())
        for way in WAYS:
            for expected, answers in zip(alone, await it.ask(asked(), way), strict=True):
                assert {expected} == set(answers), way
            if way.chunk_tokens >= sum(LENGTHS):
                assert way.together // 2 < it.witness.most_together <= way.together, (
                    "the last come a step late"
                )
        assert {SetBackBy.SWAP, SetBackBy.RECOMPUTE} == it.engine.desk.preemptions.keys()
