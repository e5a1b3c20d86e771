"""The first steps of a model, before anybody may ask it."""

from __future__ import annotations

from services.common.errors import CorruptData, InternalError
from services.common.ids import RequestId, fresh_id
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.sampling import NOT_FINITE
from services.engine.sequence import Sampling, TokenRequest


async def warm_up(engine: Engine, generation: Generation) -> None:
    """Two steps through the whole path: a prefill and a decode.

    Raises:
        CorruptData: Its logits are not finite.
        HalogenError: As a request fails.
    """
    request = TokenRequest(id=RequestId(fresh_id("warm-up")), prompt=(0, 0), sampling=Sampling(max_tokens=2))
    try:
        async with engine.run(generation, request) as stream:
            async for _ in stream:
                pass
    except InternalError as failure:
        if failure.reason != NOT_FINITE:
            raise
        raise CorruptData(
            f"artifact {generation.artifact_id} gives logits that are not finite in its warm-up: its weights are "
            "broken, or too large for their dtype; convert its source again, with --quant-policy fp32 --validate full",
            reason=NOT_FINITE,
        ) from failure
