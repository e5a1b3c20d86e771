"""The first steps of a model, before anybody may ask it: in slices beside those of others, and every one is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from services.common.errors import (
    CorruptData,
    HalogenError,
    InternalError,
    Overloaded,
    PreconditionFailed,
)
from services.common.ids import RequestId, fresh_id
from services.common.kv import BLOCK_TOKENS
from services.common.text.representative_prompts import RepresentativePrompt
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.lender import LoadedModel
from services.engine.sampling import NOT_FINITE
from services.engine.sequence import TokenRequest
from services.engine.warm_model import WarmModel
from services.engine.warm_plan import Shapes, WarmRequest, WarmRound, plan

MOST_SHARE: Final = 0.05  # of the arena, for the requests of a round together

log = structlog.get_logger()


async def warm_up(
    engine: Engine, generation: Generation, prompts: Sequence[RepresentativePrompt] = ()
) -> None:
    """Takes the model through the whole path: prefill, decode, sampling; as `plan` says.

    Args:
        engine: Computes it, beside what others ask.
        generation: Has the model, and is WARMING.
        prompts: The artifact's representative requests.

    Raises:
        CorruptData: Its logits are not finite.
        PreconditionFailed: It gives something else than a step must, or than a request expects.
        Overloaded: The arena has no room for what cannot be left out.
        HalogenError: As a request fails.
    """
    with generation.use() as model:
        warming = _WarmUp(engine, generation, model)
        for each in plan(prompts, _shapes(engine, model)):
            await warming.run(each)


def _shapes(engine: Engine, model: LoadedModel) -> Shapes:
    arena_tokens = engine.arena.pool.promisable_bytes // model.block_bytes * BLOCK_TOKENS
    return Shapes(
        chunk_tokens=engine.chunk_tokens,
        max_batch=engine.max_batch,
        max_tokens=min(model.max_context_tokens, arena_tokens),
        sizes=dict(engine.tally.sizes),
    )


class _WarmUp:
    def __init__(self, engine: Engine, generation: Generation, model: LoadedModel) -> None:
        self._engine = engine
        self._artifact_id = generation.artifact_id
        self._model = WarmModel(model, generation)

    async def run(self, round_: WarmRound) -> None:
        """Computes a round at once, and what found no room for that by itself, if it cannot be left out."""
        if not self._fits_beside(round_):
            await self._run_small(round_)
            return
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(self._try(request)) for request in round_.requests]
        for request, tried in zip(round_.requests, tries, strict=True):
            answer = tried.result()
            if isinstance(answer, Overloaded):
                if not round_.is_needed:
                    log.info("warm_up_shortened", artifact_id=self._artifact_id, reason=answer.message)
                    return
                answer = await self._try(request)
            self._check(request, answer)

    async def _run_small(self, round_: WarmRound) -> None:
        """One request after the other, or none of a round that can be left out."""
        if not round_.is_needed:
            log.info("warm_up_shortened", artifact_id=self._artifact_id, reason="others need the KV memory")
            return
        for request in round_.requests:
            self._check(request, await self._try(request))

    def _fits_beside(self, round_: WarmRound) -> bool:
        """Whether it takes no more of the arena than schedulers leave: the rest is promised, or may be any moment."""
        total = self._engine.arena.pool.promisable_bytes // self._model.block_bytes
        tokens = (len(each.prompt) + each.sampling.max_tokens for each in round_.requests)
        return sum(-(-count // BLOCK_TOKENS) for count in tokens) <= MOST_SHARE * total

    async def _try(self, request: WarmRequest) -> list[int] | HalogenError:
        """What it answers, or why it does not."""
        asked = TokenRequest(
            id=RequestId(fresh_id("warm-up")), prompt=request.prompt, sampling=request.sampling
        )
        try:
            async with self._engine.run(self._model, asked) as stream:
                return [token async for piece in stream for token in piece.token_ids]
        except HalogenError as failure:
            return failure

    def _check(self, request: WarmRequest, answer: list[int] | HalogenError) -> None:
        if isinstance(answer, HalogenError):
            raise self._explained(answer) from answer
        if len(answer) != request.sampling.max_tokens or not all(
            0 <= token < self._model.vocab_size for token in answer
        ):
            raise self._broken(f"an answer of {request.sampling.max_tokens} tokens is {answer}")
        if tuple(answer[: len(request.expected)]) != request.expected:
            raise PreconditionFailed(
                f"artifact {self._artifact_id} answers its representative request {request.number} with tokens "
                f"{answer}, and expected_token_ids says {list(request.expected)}: either these are another model's "
                "weights, or the expectation is; publish the artifact that it was taken from, or convert it with "
                "another one",
                reason="PROBE_MISMATCH",
            )

    def _explained(self, failure: HalogenError) -> HalogenError:
        if self._model.breach:
            return self._broken(self._model.breach)
        if not isinstance(failure, InternalError) or failure.reason != NOT_FINITE:
            return failure
        return CorruptData(
            f"artifact {self._artifact_id} gives logits that are not finite in its warm-up: its weights are "
            "broken, or too large for their dtype; convert its source again, with --quant-policy fp32 --validate full",
            reason=NOT_FINITE,
        )

    def _broken(self, what: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"artifact {self._artifact_id} gives what no step may in its warm-up: {what}; serve it with the build that "
            "converted it, or convert the original checkpoint with this one",
            reason="OUTPUT_CONTRACT",
        )
