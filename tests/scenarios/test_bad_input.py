"""What no engine could do is refused before one sees it, and harms nobody who runs beside it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest

from halogen.v1 import inference_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.inference_pb2_grpc import InferenceServiceStub
from services.common.errors import InternalError
from services.common.rpc.client import connect
from services.engine.engine import Engine
from services.engine.loaded_model import ModelOnArena
from services.engine.ragged import Ragged
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
VOCABULARY: Final = 512
HUGE: Final = 2**32 - 1
TEXT: Final[dict[str, Any]] = {"text": "Once upon a time"}


def sampled(**params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**TEXT, sampling=types_pb2.SamplingParams(**params))


def prompted(*ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))


BAD: Final = {
    "temperature NaN": sampled(temperature=math.nan),
    "temperature infinite": sampled(temperature=math.inf),
    "temperature below 0": sampled(temperature=-0.1),
    "temperature over 2": sampled(temperature=2.1),
    "top_p 0": sampled(top_p=0),
    "top_p NaN": sampled(top_p=math.nan),
    "top_p over 1": sampled(top_p=1.1),
    "top_k over the vocabulary": sampled(top_k=VOCABULARY + 1),
    "max_tokens 0": sampled(max_tokens=0),
    "max_tokens -1, as 32 bits hold it": sampled(max_tokens=HUGE),
    "a stop token out of the vocabulary": sampled(stop_token_ids=[VOCABULARY]),
    "the greatest stop token": sampled(stop_token_ids=[HUGE]),
    "2,000 stop tokens": sampled(stop_token_ids=[1] * 2000),
    "an empty stop string": pb.GenerateRequest(**TEXT, stop=["a", ""]),
    "a long stop string": pb.GenerateRequest(**TEXT, stop=["a" * 257]),
    "100,000 stop strings": pb.GenerateRequest(**TEXT, stop=["a"] * 100_000),
    "no prompt": pb.GenerateRequest(),
    "an empty text": pb.GenerateRequest(text=""),
    "no token ids": prompted(),
    "a token id out of the vocabulary": prompted(1, VOCABULARY),
    "the greatest token id": prompted(HUGE),
    "a long request_id": pb.GenerateRequest(**TEXT, request_id="r" * 129),
    "a long cache_salt": pb.GenerateRequest(**TEXT, cache_salt="s" * 257),
    "a cohort that there is not": pb.GenerateRequest(**TEXT, cohort="blue"),
}


async def status(stub: Any, request: pb.GenerateRequest) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request, timeout=60).read()
    assert "Traceback" not in str(refused.value.details())
    return refused.value.code()


async def test_s_g1_what_cannot_work_is_refused_before_an_engine_sees_it(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INVALID_ARGUMENT for each, and a stream that runs meanwhile is the one that it is alone.

    Fault injection: turns red when Request takes any stop strings.
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    seen: list[str] = []
    run = Engine.run

    def counted(engine: Engine, lender: Any, request: Any, *more: Any) -> Any:
        seen.append(request.id)
        return run(engine, lender, request, *more)

    options: dict[str, Any] = {"max_tokens": 100, "temperature": 0, "ignore_eos": True, "timeout_s": 120}
    async with system.client() as client, connect(system.gateway) as channel:
        alone = await client.generate("Once upon a time", **options).complete()
        monkeypatch.setattr(Engine, "run", counted)
        beside = asyncio.ensure_future(client.generate("Once upon a time", **options).complete())
        stub = InferenceServiceStub(channel)
        statuses = {name: await status(stub, request) for name, request in BAD.items()}
        assert alone.token_ids == (await beside).token_ids
    assert dict.fromkeys(BAD, grpc.StatusCode.INVALID_ARGUMENT) == statuses
    assert 1 == len(seen)


async def test_s_g1_what_fails_for_one_request_in_a_step_ends_that_one_alone(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of a step's logits is broken: INTERNAL for its request; those beside it end as they do alone.

    Fault injection: turns red when sampling.choose raises for a row that is not finite.
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    forward, poison = ModelOnArena.forward, [0]

    def spoiling(model: ModelOnArena, step: Ragged) -> Any:
        logits = forward(model, step)
        logits[step.token_ids[step.sample_rows] == poison[0]] = np.nan
        return logits

    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True, "timeout_s": 120}
    async with system.client() as client:
        alone = await client.generate("Once upon a time", **options).complete()
        poison[0] = next(token for token in range(100, VOCABULARY) if token not in alone.token_ids)
        monkeypatch.setattr(ModelOnArena, "forward", spoiling)
        sound = [
            asyncio.ensure_future(client.generate("Once upon a time", **options).complete()) for _ in range(3)
        ]
        with pytest.raises(InternalError) as failure:
            await client.generate([5, 6, *poison], **options).complete()
        assert [alone.token_ids] * 3 == [each.token_ids for each in await asyncio.gather(*sound)]
    assert "NOT_FINITE" == failure.value.reason
