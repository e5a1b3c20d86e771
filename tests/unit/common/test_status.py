"""Every error of the tree crosses the wire and comes back as itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2, wrappers_pb2

from services.common import errors
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer
from services.common.rpc.status import PUSHBACK_KEY, from_rpc_error, to_status

SERVICE = "halogen.test.Faults"
KINDS = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and kind.__base__ is errors.HalogenError
    ),
    key=lambda kind: kind.__name__,
)


class Faults:
    """Raises what a test puts in, from a unary and from a stream after one message."""

    failure: Exception = errors.InternalError("unset")

    async def fail(self, request: Any, context: Any) -> Any:
        raise self.failure

    async def fail_late(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield wrappers_pb2.StringValue(value="first")
        raise self.failure


@pytest.fixture
async def faults() -> AsyncIterator[tuple[Faults, grpc.aio.Channel]]:
    server, servicer = RpcServer([SERVICE]), Faults()
    read, write = empty_pb2.Empty.FromString, lambda message: message.SerializeToString()
    handlers = {
        "Fail": grpc.unary_unary_rpc_method_handler(servicer.fail, read, write),
        "FailLate": grpc.unary_stream_rpc_method_handler(servicer.fail_late, read, write),
    }
    server.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    bound = await server.start(Address("127.0.0.1", 0))
    async with connect(str(bound)) as channel:
        yield servicer, channel
    await server.stop(0)


async def call(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    unary: Any = channel.unary_unary(f"/{SERVICE}/Fail")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await unary(b"")
    return raised.value


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_comes_back_as_itself(kind: type[errors.HalogenError], faults: Any) -> None:
    """Kind, message, reason, metadata and the time to come back survive the wire."""
    servicer, channel = faults
    servicer.failure = kind("do this", reason="WHY", metadata={"limit": "3"}, retry_after_s=1.5)
    back = from_rpc_error(await call(channel))
    assert (kind, "do this", "WHY", {"limit": "3"}, 1.5) == (
        type(back),
        back.message,
        back.reason,
        dict(back.metadata),
        back.retry_after_s,
    )


async def test_overload_carries_pushback_in_milliseconds(faults: Any) -> None:
    """grpc's own retry key tells any client when to come back."""
    servicer, channel = faults
    servicer.failure = errors.Overloaded("later", retry_after_s=0.25)
    trailing = dict((await call(channel)).trailing_metadata() or ())
    assert "250" == trailing[PUSHBACK_KEY]


async def test_no_pushback_where_a_retry_cannot_help(faults: Any) -> None:
    """What can never work is not to be tried again."""
    servicer, channel = faults
    servicer.failure = errors.InvalidRequest("never")
    assert PUSHBACK_KEY not in dict((await call(channel)).trailing_metadata() or ())


async def test_a_fault_of_ours_tells_nothing_of_its_insides(faults: Any) -> None:
    """A caller sees INTERNAL, never a path or a trace."""
    servicer, channel = faults
    servicer.failure = ValueError("/secret/path")
    failure = await call(channel)
    assert grpc.StatusCode.INTERNAL is failure.code()
    assert "/secret" not in str(failure.details())


async def test_an_error_after_partial_output_is_a_status(faults: Any) -> None:
    """A stream that fails late still ends in a status, after what it had sent."""
    servicer, channel = faults
    servicer.failure = errors.Unavailable("engine gone")
    stream: Any = channel.unary_stream(f"/{SERVICE}/FailLate")
    responses = stream(b"")
    assert await responses.read() != grpc.aio.EOF
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await responses.read()
    assert grpc.StatusCode.UNAVAILABLE is raised.value.code()


def test_the_transports_own_failure_may_be_tried_again() -> None:
    """A peer that is starting says nothing of ours; a second try in a second may find it."""
    metadata = grpc.aio.Metadata()
    failure = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "refused")
    assert 1.0 == from_rpc_error(failure).retry_after_s


def test_callers_words_cannot_burst_a_status() -> None:
    """Message and metadata are cut to what trailing metadata may carry."""
    long = errors.InvalidRequest("m" * 100_000, metadata={"value": "v" * 100_000})
    size = sum(len(key) + len(value) for key, value in to_status(long).trailing_metadata)
    assert size < 4_096


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status(kind: type[errors.HalogenError]) -> None:
    """The table covers the tree, subclasses that adapters define included."""
    special = type("Special", (kind,), {})
    assert to_status(special("x")).code is to_status(kind("x")).code


async def test_a_time_that_was_too_short_is_said_so(faults: Any) -> None:
    """The transport's words are about streams and tell nobody what to do; a server's own sentence stays."""
    servicer, channel = faults
    servicer.failure = errors.DeadlinePassed("no room within the caller's time")
    assert "no room within the caller's time" == from_rpc_error(await call(channel)).message
    none = grpc.aio.Metadata()
    for words in ("Deadline Exceeded", "Stream removed (Deadline Exceeded)"):
        own = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, none, none, words))
        assert (errors.DeadlinePassed, True) == (
            type(own),
            "the time that was given for it is over" in own.message,
        )
