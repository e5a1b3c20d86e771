"""Every call that a server answers has one span, which ends as the call does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2, wrappers_pb2
from opentelemetry.trace import StatusCode

from services.common.errors import Overloaded
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer
from services.common.telemetry.tracing import outgoing, span
from tests.recorded_spans import RecordedSpans, recording

SERVICE = "halogen.test.Calls"


class Calls:
    """One call for each way to end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def answer(self, request: Any, context: Any) -> Any:
        return wrappers_pb2.StringValue(value=dict(outgoing())["traceparent"])

    async def fail(self, request: Any, context: Any) -> Any:
        raise Overloaded("no room", reason="QUEUE_FULL")

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            yield wrappers_pb2.StringValue(value="first")
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Calls, Any]]:
    """Begun within the test, so that its handlers make the test's spans."""
    server, calls = RpcServer([SERVICE]), Calls()
    read, write = empty_pb2.Empty.FromString, lambda message: message.SerializeToString()
    handlers = {
        "Answer": grpc.unary_unary_rpc_method_handler(calls.answer, read, write),
        "Fail": grpc.unary_unary_rpc_method_handler(calls.fail, read, write),
        "Stream": grpc.unary_stream_rpc_method_handler(calls.stream, read, write),
        "WatchStream": grpc.unary_stream_rpc_method_handler(calls.stream, read, write),
    }
    server.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    bound = await server.start(Address("127.0.0.1", 0))
    async with connect(str(bound)) as channel:
        yield calls, channel
    await server.stop(0)


async def test_a_call_goes_on_with_its_callers_trace() -> None:
    """The server's span is the caller's child, and what the handler calls is the server's."""
    with recording() as spans:
        async with serving() as (_, channel):
            with span("caller"):
                answer = await channel.unary_unary(f"/{SERVICE}/Answer")(b"")
    caller, served = spans.named("caller"), spans.named(f"{SERVICE}/Answer")
    assert caller.context is not None
    assert served.context is not None
    assert served.parent is not None
    assert caller.context.span_id == served.parent.span_id
    carried = wrappers_pb2.StringValue.FromString(answer).value
    assert [f"{caller.context.trace_id:032x}", f"{served.context.span_id:016x}"] == carried.split("-")[1:3]


async def test_a_refusal_is_the_spans_status() -> None:
    """Code and reason as the caller sees them.

    Fault injection: the interceptor aborts without `_told`.
    """
    with recording() as spans:
        async with serving() as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/Fail")(b"")
    ended = spans.named(f"{SERVICE}/Fail")
    assert ended.attributes is not None
    assert (StatusCode.ERROR, "QUEUE_FULL", 8) == (
        ended.status.status_code,
        ended.attributes["error.type"],
        ended.attributes["rpc.grpc.status_code"],
    )


@pytest.mark.parametrize(
    ("timeout_s", "reason", "code"), [(None, "CANCELLED", 1), (0.3, "DEADLINE_EXCEEDED", 4)]
)
async def test_a_call_cut_short_has_a_span(timeout_s: float | None, reason: str, code: int) -> None:
    """A caller that leaves, or whose time is over, does not leave a span open.

    Fault injection: `server_span` ends its span without a finally.
    """
    with recording() as spans:
        async with serving() as (calls, channel):
            call = channel.unary_stream(f"/{SERVICE}/Stream")(b"", timeout=timeout_s)
            await call.read()
            if timeout_s is None:
                call.cancel()
            await asyncio.wait_for(calls.ended.wait(), 10)
    ended = spans.named(f"{SERVICE}/Stream")
    assert ended.attributes is not None
    assert (reason, code) == (ended.attributes["error.type"], ended.attributes["rpc.grpc.status_code"])


async def test_watches_and_health_have_no_span() -> None:
    """What lasts as long as its caller, and what asks every second, would only bury the rest."""
    with recording() as spans:
        await _watch(spans)
    assert () == spans.ended


async def _watch(spans: RecordedSpans) -> None:
    async with serving() as (calls, channel):
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        call = channel.unary_stream(f"/{SERVICE}/WatchStream")(b"")
        await call.read()
        call.cancel()
        await asyncio.wait_for(calls.ended.wait(), 10)
