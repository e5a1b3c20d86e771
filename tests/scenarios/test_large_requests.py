"""What is too large is refused by the name of its limit, and what is merely large holds nobody up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halogen.v1 import inference_pb2
from halogen.v1.inference_pb2_grpc import InferenceServiceStub
from services.common.errors import InvalidRequest
from services.common.rpc.client import connect
from services.common.rpc.options import MESSAGE_LIMIT_BYTES
from services.gateway.tokenizer import TextTokenizer
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]


async def is_serving(system: Cluster) -> bool:
    async with connect(system.gateway) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_s_e3_health_answers_while_a_large_prompt_is_tokenized(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is held as it works on a megabyte: the gateway's loop is free, and others are served.

    Fault injection: turns red when TextTokenizer.encode does not leave the event loop.
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    begun, may_go = threading.Event(), threading.Event()
    encode = TextTokenizer._encode

    def held(tokenizer: TextTokenizer, text: str, special: bool) -> list[int]:
        if len(text) > 1000:
            begun.set()
            assert may_go.wait(60), "nobody was served meanwhile"
        return encode(tokenizer, text[:4000], special)

    monkeypatch.setattr(TextTokenizer, "_encode", held)
    async with system.client() as client:
        large = asyncio.ensure_future(client.generate("a b c d " * (1 << 17), max_tokens=4).complete())
        try:
            assert await asyncio.to_thread(begun.wait, 60)
            assert await is_serving(system)
            answer = await client.generate("Once", max_tokens=2, ignore_eos=True, timeout_s=30).complete()
            assert 2 == len(answer.token_ids)
        finally:
            may_go.set()
        with pytest.raises(InvalidRequest):  # longer than the context
            await large


async def test_s_e3_30_megabytes_are_refused_before_they_are_read(
    start: Start, stories: dict[str, Path]
) -> None:
    """RESOURCE_EXHAUSTED with the limit in its words, and the next call is answered.

    Fault injection: turns red when grpc.max_receive_message_length is left out of rpc/options.py (4 MiB then).
    """
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    unlimited = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(system.gateway, options=unlimited) as channel:
        request = inference_pb2.GenerateRequest(text="a" * (30 << 20))
        with pytest.raises(grpc.aio.AioRpcError, match=str(MESSAGE_LIMIT_BYTES)) as refused:
            await InferenceServiceStub(channel).Generate(request, timeout=60).read()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is refused.value.code()
    assert await is_serving(system)


async def test_s_f2_5_mebibytes_pass_the_wire_and_are_refused_by_our_own_limit(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """More than gRPC's own 4 MiB arrive, and the answer names our limit on prompts and the size.

    Fault injection: turns red when grpc.max_receive_message_length is left out of rpc/options.py.
    """
    system: Cluster = await start(driver)
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        with pytest.raises(InvalidRequest, match=f"{5 << 20} bytes.*at most {1 << 20}") as refused:
            await client.generate("a" * (5 << 20), max_tokens=4, timeout_s=60).complete()
    assert "PROMPT_TOO_LARGE" == refused.value.reason
