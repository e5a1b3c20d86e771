"""A server that ends: new work is refused, what runs is finished, and nobody is left without a status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
import pytest
from google.protobuf import empty_pb2, wrappers_pb2

from services.common.errors import Overloaded, Unavailable
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer
from services.common.rpc.status import PUSHBACK_KEY, from_rpc_error

SERVICE = "halogen.test.Work"
EMPTY = empty_pb2.Empty()
PAGE = wrappers_pb2.BytesValue(value=bytes(16 << 10))


class Work:
    """Unary and streaming work that ends when the test says so, and the calls that are no work."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.left = asyncio.Event()
        self.sent = 0

    async def run(self, request: Any, context: Any) -> Any:
        self.begun.set()
        await self.may_end.wait()
        return EMPTY

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield PAGE
        self.begun.set()
        await self.may_end.wait()
        yield PAGE

    async def flood(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield PAGE
                self.sent += 1
        finally:
            self.left.set()

    async def abort(self, request: Any, context: Any) -> Any:
        return EMPTY

    def handlers(self) -> dict[str, Any]:
        read, write = empty_pb2.Empty.FromString, lambda message: message.SerializeToString()
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "Run": unary(self.run, read, write),
            "Abort": unary(self.abort, read, write),
            "Stream": stream(self.stream, read, write),
            "Flood": stream(self.flood, read, write),
            "WatchWork": stream(self.stream, read, write),
        }


async def read_all(call: Any) -> None:
    while await call.read():
        pass


class Served:
    """A server, its work, and a channel to it."""

    def __init__(self, slow_reader_s: float = 30.0) -> None:
        self.work = Work()
        self.server = RpcServer([SERVICE], slow_reader_s)
        handlers = grpc.method_handlers_generic_handler(SERVICE, self.work.handlers())
        self.server.grpc_server.add_generic_rpc_handlers((handlers,))

    async def __aenter__(self) -> Self:
        self.channel = connect(str(await self.server.start(Address("127.0.0.1", 0))))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def unary(self, name: str) -> Any:
        method: Any = self.channel.unary_unary(f"/{SERVICE}/{name}")
        return method(b"")

    def stream(self, name: str) -> Any:
        read = wrappers_pb2.BytesValue.FromString
        method: Any = self.channel.unary_stream(f"/{SERVICE}/{name}", response_deserializer=read)
        return method(b"")

    async def refusing(self) -> asyncio.Task[None]:
        """Begins to end; returns when new work is refused."""
        stopping = asyncio.ensure_future(self.server.stop(60))
        await self.server.in_flight.refusing.wait()
        return stopping


async def test_s_e7_what_runs_is_finished_and_what_comes_is_refused() -> None:
    """The running stream gets all of its messages; a new call UNAVAILABLE, STOPPING and when to come back.

    Fault injection: turns red when RpcServer.stop does not wait for wait_idle().
    """
    async with Served() as served:
        running = served.stream("Stream")
        await served.work.begun.wait()
        stopping = await served.refusing()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.unary("Run")
        refused = from_rpc_error(raised.value)
        assert (Unavailable, "STOPPING") == (type(refused), refused.reason)
        assert int(dict(raised.value.trailing_metadata() or ())[PUSHBACK_KEY]) > 0
        served.work.may_end.set()
        assert 2 == len([message async for message in running])
        await stopping


async def test_what_ends_work_is_still_answered() -> None:
    """An abort during the drain shortens it: it must not be refused.

    Fault injection: turns red when Abort is left out of in_flight._ALWAYS.
    """
    async with Served() as served:
        running = served.stream("Stream")
        await served.work.begun.wait()
        stopping = await served.refusing()
        await served.unary("Abort")
        served.work.may_end.set()
        assert 2 == len([message async for message in running])
        await stopping


async def test_new_calls_are_taken_during_the_grace() -> None:
    """Others need a moment to learn that this process ends: until then nobody is turned away."""
    async with Served() as served:
        stopping = asyncio.ensure_future(served.server.stop(60, 0.5))
        await asyncio.sleep(0)
        assert served.server.readiness.ending
        running = served.unary("Run")
        await served.work.begun.wait()
        served.work.may_end.set()
        await running
        await stopping


async def test_s_e7_what_is_not_finished_in_time_ends_in_a_status() -> None:
    """UNAVAILABLE and STOPPING, not a broken connection, for a unary and for a stream after its first message."""
    async with Served() as served:
        unary, stream = served.unary("Run"), served.stream("Stream")
        await stream.read()
        await served.work.begun.wait()
        await served.server.stop(0.01)
        for call in (unary, stream):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read() if call is stream else await call
            assert (Unavailable, "STOPPING") == (
                type(from_rpc_error(raised.value)),
                from_rpc_error(raised.value).reason,
            )


async def test_r_e9_the_drain_ends_with_the_last_request() -> None:
    """Within 200 ms of it, whatever the bound is and although a watch is open.

    Fault injection: turns red when RpcServer.stop sleeps for drain_s, or leaves the watches to grpc's own stop.
    """
    async with Served() as served:
        watch = served.stream("WatchWork")
        await watch.read()
        served.work.begun.clear()  # the watch has begun, the call has not
        running = served.unary("Run")
        await served.work.begun.wait()
        stopping = await served.refusing()
        served.work.begun.clear()
        serving_watch = served.stream("WatchWork")  # still comes in
        await serving_watch.read()
        await served.work.begun.wait()
        assert not stopping.done()
        running.cancel()
        await served.server.in_flight.wait_idle()
        ended_s = time.monotonic()
        await stopping
        assert time.monotonic() - ended_s < 0.2
        assert grpc.StatusCode.UNAVAILABLE is await watch.code()


async def test_s_f4_a_reader_that_takes_nothing_is_given_up() -> None:
    """Its stream stops within the transport's window, its work is ended, and it learns why; others are served.

    Fault injection: turns red when StatusInterceptor does not write within call.sending().
    """
    async with Served(slow_reader_s=0.3) as served:
        flood = served.stream("Flood")
        await flood.read()
        await asyncio.wait_for(served.work.left.wait(), 30)
        assert served.work.sent < 64  # of 16 KiB
        await served.unary("Abort")
        await asyncio.wait_for(served.server.in_flight.wait_idle(), 30)  # nothing waits for it to read
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_all(flood)
    slow = from_rpc_error(raised.value)
    assert (Overloaded, "SLOW_READER") == (type(slow), slow.reason)


async def test_a_reader_that_is_slow_but_reads_is_kept() -> None:
    """Patience begins anew with everything that it takes."""
    async with Served(slow_reader_s=2.0) as served:
        flood = served.stream("Flood")
        for _ in range(40):
            await flood.read()
            await asyncio.sleep(0.06)
        assert not served.work.left.is_set()
        flood.cancel()
        await served.work.left.wait()
