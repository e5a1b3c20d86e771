"""Answers of real kernels, with logprobs, to requests that are set back: those of an engine that never sets one back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from services.common.ids import RequestId, TicketId
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.kernels.protocol import Kernels
from services.engine.loaded_model import ModelLoading, ModelOnArena
from services.engine.preemption import Way
from services.engine.sequence import Sampling, TokenRequest
from tests.unit.engine.decoding import prepared
from tests.unit.engine.fakes import generation

LENGTHS = [(70, 90), (70, 90), (9, 40), (25, 40), (40, 40), (17, 40)]  # of prompts and answers
SHARING = {0, 1, 4}  # find pages, and leave some
TIGHT_BLOCKS = 26  # of the 10 + 10 + 3 + 4 + 5 + 4 that they need


class Answer(NamedTuple):
    ids: list[int]
    logprobs: list[float]


def asked() -> list[TokenRequest]:
    """Greedy and seeded ones; two begin alike."""
    chance = np.random.default_rng(5)
    prompts = [chance.integers(1, 512, prompt).tolist() for prompt, _ in LENGTHS]
    prompts[1][:40] = prompts[0][:40]
    return [
        TokenRequest(
            id=RequestId(f"r{i}"),
            prompt=prompt,
            sampling=Sampling(max_tokens=new, temperature=0.8 * (i % 2), top_p=0.95, seed=i, logprobs=True),
            cache_salt=b"" if i in SHARING else None,
        )
        for i, (prompt, (_, new)) in enumerate(zip(prompts, LENGTHS, strict=True))
    ]


def loaded(artifact: Path, kernels: Kernels, blocks: int, block_bytes: int) -> tuple[Arena, ModelOnArena]:
    arena = Arena(blocks * block_bytes)
    return arena, ModelLoading(arena=arena, kernels=kernels, dtype="auto", max_model_len=0).load(
        prepared(artifact)
    )


async def answers(engine: Engine, model: ModelOnArena) -> list[Answer]:
    """All at once, each with a ticket for its prompt and one token."""

    async def one(request: TokenRequest) -> Answer:
        promised_bytes = (len(request.prompt) // 16 + 1) * model.block_bytes
        answer = Answer([], [])
        async with engine.run(generation(model), request, TicketId(request.id), promised_bytes) as stream:
            async for piece in stream:
                answer.ids.extend(piece.token_ids)
                answer.logprobs.extend(piece.logprobs)
        return answer

    async with engine, asyncio.timeout(200):
        told = await asyncio.gather(*map(one, asked()))
        engine.check()
    return told


# Fault injection: turns red when `Job.come_back` writes nothing of what was saved, or `Sequence.come_back` leaves
# `computed` as it was.
@pytest.mark.parametrize("swap_bytes", [0, 64 << 20])
async def test_s_b3_tokens_and_logprobs_are_those_of_requests_that_are_never_set_back(
    swap_bytes: int, artifacts: dict[str, Path], kernels: Kernels
) -> None:
    """S-B3: the same ids and the same bits of logprobs, greedy and seeded, with pages found, by either way."""
    _, probe = loaded(artifacts["grouped"], kernels, 1 << 10, 1 << 10)
    roomy, tight = (
        loaded(artifacts["grouped"], kernels, blocks, probe.block_bytes) for blocks in (400, TIGHT_BLOCKS)
    )
    reference = Engine(roomy[0], chunk_tokens=32, max_batch=8)
    told = await answers(reference, roomy[1])
    assert not reference.desk.preemptions
    pressed = Engine(tight[0], chunk_tokens=16, max_batch=8, swap_bytes=swap_bytes, check_every_step=True)
    assert told == await answers(pressed, tight[1])
    assert pressed.desk.preemptions.total()
    assert (Way.SWAP in pressed.desk.preemptions) is bool(swap_bytes)
    assert [new for _, new in LENGTHS] == [len(answer.logprobs) for answer in told]
