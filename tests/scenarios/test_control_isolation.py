"""What operators send, also nonsense, harms nobody who is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from halogen.v1 import control_pb2
from services.common.rpc.client import connect
from tests.scenarios.asking import asking
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, operator, until_led
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
SERVICE = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
PROMPTED = {"GetStatus", "WatchStatus"}  # that an empty request is all they need
JUNK = {
    "empty": b"",
    "no message": b"\xff\xff\xff\xff",
    "another's model": b"\x0a\x0bNO such/one",
    "unknown fields": b"\xfa\x3e\x03abc",
    "a megabyte": b"\x0a\x80\x80\x40" + b"m" * (1 << 20),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny"), seed=3)[0]


async def code_of(channel: Any, method: str, request: bytes, *, is_stream: bool) -> str:
    """The status that a call of raw bytes ends in."""
    kind = channel.unary_stream if is_stream else channel.unary_unary
    call = kind(f"/halogen.v1.ControlService/{method}", request_serializer=None, response_deserializer=None)
    try:
        answer = call(request, timeout=30)
        if is_stream:
            async for _ in answer:
                answer.cancel()
                return "OK"
        else:
            await answer
    except grpc.aio.AioRpcError as failure:
        return str(failure.code().name)
    return "OK"


async def test_r_a26_malformed_requests_of_operators_fail_nobodys_request(start: Start, tiny: Path) -> None:
    """Every method of ControlService, with every kind of nonsense, under load: all are refused, every answer is whole.

    Fault injection: turns red when a servicer's method ends its process, or an OK comes for what was not done.
    """
    system: Cluster = await start("in_process")
    async with system.control() as control, connect(system.gateway) as channel:
        me = operator(system, control)
        (artifact_id,) = await me.register([tiny])
        await me.publish(artifact_id)
        assert APPLIED == (await me.end(1)).state
        async with asking(system, "m") as answered:
            codes = {
                (method.name, name): await code_of(
                    channel, method.name, junk, is_stream=method.server_streaming
                )
                for method in SERVICE.methods
                for name, junk in JUNK.items()
                if method.name not in PROMPTED
            }
        assert [1] == [entry.revision for entry in await me.history()]
    assert dict.fromkeys(codes, "INVALID_ARGUMENT") == codes
    assert {artifact_id} == answered.keys()


async def test_r_a18_what_this_build_cannot_do_is_unimplemented_and_never_ok(start: Start) -> None:
    """Nothing pretends: a method that is not served says so, and so does a push without a registry to push to.

    Fault injection: turns red when `Pushes._check_leader` asks nothing of the leader.
    """
    system: Cluster = await start("in_process")
    push = control_pb2.PushCommitRequest(model="m", who="test", why="test").SerializeToString()
    async with system.control() as control, connect(system.gateway) as channel:
        await until_led(control)
        asked = (
            code_of(channel, "PushCommit", push, is_stream=True),
            code_of(channel, "ResetPrefixCache", b"", is_stream=False),
        )
        assert ["UNIMPLEMENTED"] * 2 == list(await asyncio.gather(*asked))
