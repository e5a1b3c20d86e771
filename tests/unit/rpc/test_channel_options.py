"""Channel arguments: known to gRPC, the same on both sides, and doing what they are for."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.errors import Unavailable
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.options import CLIENT_OPTIONS, MESSAGE_LIMIT_BYTES, SERVER_OPTIONS, Options
from services.common.rpc.server import RpcServer

PING_INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
PING_STRIKES = "grpc.http2.max_ping_strikes"
MARGIN_S = 1.5  # more silence than what killed the call that was not protected


def test_grpc_knows_every_option() -> None:
    """A key that gRPC's core does not contain is silently ignored; each of ours is in it."""
    core = Path(cygrpc.__file__).read_bytes()
    keys = {key for key, _ in (*SERVER_OPTIONS, *CLIENT_OPTIONS)}
    assert set() == {key for key in keys if key.encode() not in core}
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms" not in core, "the misspelling must be seen"


def test_both_sides_agree() -> None:
    """Message limits and keepalive are the same on servers and clients: raised on one side only they do not hold."""
    shared = {key for key, _ in SERVER_OPTIONS} & {key for key, _ in CLIENT_OPTIONS}
    assert {
        "grpc.max_receive_message_length",
        "grpc.max_send_message_length",
        "grpc.keepalive_time_ms",
        "grpc.keepalive_timeout_ms",
        "grpc.http2.ping_timeout_ms",
        "grpc.keepalive_permit_without_calls",
        "grpc.http2.max_pings_without_data",
        "grpc.http2.bdp_probe",
    } == shared
    for key in shared:
        assert dict(SERVER_OPTIONS)[key] == dict(CLIENT_OPTIONS)[key]


class Echo(grpc.GenericRpcHandler):
    """Sends back what comes, once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def echo(request: bytes, context: Any) -> bytes:
            await self.gate.wait()
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


@asynccontextmanager
async def serving(echo: Echo, options: Options) -> AsyncIterator[str]:
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((echo,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def without(options: Options, *keys: str) -> Options:
    return [(key, value) for key, value in options if key not in keys]


def send(channel: grpc.aio.Channel, payload: bytes) -> grpc.aio.UnaryUnaryCall[bytes, bytes]:
    call: grpc.aio.UnaryUnaryCall[bytes, bytes] = cast("Any", channel).unary_unary("/test/Echo")(payload)
    return call


@asynccontextmanager
async def silent_call(server_options: Options) -> AsyncIterator[tuple[asyncio.Task[grpc.StatusCode], Echo]]:
    """The status to be of a call during which nothing is sent but a client's keepalive every second."""
    echo = Echo()
    echo.gate.clear()
    client_options = [*without(CLIENT_OPTIONS, "grpc.keepalive_time_ms"), ("grpc.keepalive_time_ms", 1_000)]
    async with (
        serving(echo, server_options) as address,
        grpc.aio.insecure_channel(address, options=client_options) as channel,
    ):
        yield asyncio.ensure_future(send(channel, b"hello").code()), echo


# Turns red when: the key in PING_INTERVAL or in PING_STRIKES is misspelt in rpc/options.py (each alone is enough).
async def test_s_f1_a_long_silent_call_survives_keepalive() -> None:
    """Either of the server's two protections keeps a silent call alive; without both, gRPC ends it."""
    async with (
        silent_call(SERVER_OPTIONS) as both,
        silent_call(without(SERVER_OPTIONS, PING_STRIKES)) as interval,
        silent_call(without(SERVER_OPTIONS, PING_INTERVAL)) as strikes,
        silent_call(without(SERVER_OPTIONS, PING_STRIKES, PING_INTERVAL)) as neither,
    ):
        assert grpc.StatusCode.UNAVAILABLE == await asyncio.wait_for(neither[0], 30)
        await asyncio.wait({both[0], interval[0], strikes[0]}, timeout=MARGIN_S)
        for _, echo in (both, interval, strikes):
            echo.gate.set()
        assert [grpc.StatusCode.OK] * 3 == [await code for code, _ in (both, interval, strikes)]


async def test_large_messages_pass_both_ways() -> None:
    """5 MiB, more than gRPC's own limit of 4, goes there and back."""
    async with serving(Echo(), SERVER_OPTIONS) as address, connect(address) as channel:
        payload = bytes(5 << 20)
        assert payload == await send(channel, payload)


async def test_too_large_messages_are_refused_by_size() -> None:
    """The refusal names the limit."""
    async with serving(Echo(), SERVER_OPTIONS) as address, connect(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=str(MESSAGE_LIMIT_BYTES)) as caught:
            await send(channel, bytes(MESSAGE_LIMIT_BYTES + 1))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED == caught.value.code()


async def test_a_port_has_one_server() -> None:
    """A second server on a port is refused, not given every other connection."""
    first = RpcServer([])
    address = await first.start(Address("127.0.0.1", 0))
    second = RpcServer([])
    with pytest.raises(Unavailable, match="cannot listen"):
        await second.start(address)
    await first.stop(0)
    await second.stop(0)


async def test_a_server_that_comes_back_is_found_soon() -> None:
    """After a restart on the same port a client is connected again within seconds, not after gRPC's two minutes."""
    first = RpcServer([])
    address = await first.start(Address("127.0.0.1", 0))
    async with connect(str(address)) as channel:
        await channel.channel_ready()
        await first.stop(0)
        state = channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state()
        second = RpcServer([])
        await second.start(address)
        await asyncio.wait_for(channel.channel_ready(), 3)
        await second.stop(0)


FROZEN = """
import asyncio, grpc
from services.common.rpc.options import SERVER_OPTIONS

async def main():
    server = grpc.aio.server(options=SERVER_OPTIONS)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


# Turns red when: grpc.http2.ping_timeout_ms is left out of rpc/options.py (gRPC then waits a minute).
async def test_a_frozen_peer_is_given_up() -> None:
    """A call without a deadline to a process that is stopped, not dead, ends soon after a ping is not answered."""
    faster = {"grpc.keepalive_time_ms": 1_000, "grpc.http2.ping_timeout_ms": 1_000}
    assert faster.keys() <= dict(CLIENT_OPTIONS).keys()
    options = [*without(CLIENT_OPTIONS, *faster), *faster.items()]
    with subprocess.Popen([sys.executable, "-c", FROZEN], stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        try:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{int(peer.stdout.readline())}", options=options
            ) as channel:
                await channel.channel_ready()
                peer.send_signal(signal.SIGSTOP)
                assert grpc.StatusCode.UNAVAILABLE == await asyncio.wait_for(send(channel, b"x").code(), 30)
        finally:
            peer.kill()


async def test_a_name_for_several_peers_is_answered_by_one_that_lives() -> None:
    """A channel whose name stands for two servers goes on with the second when the first ends."""
    servers = [RpcServer([]), RpcServer([])]
    addresses = [str(await server.start(Address("127.0.0.1", 0))) for server in servers]
    async with connect("ipv4:127.0.0.1:1," + ",".join(addresses)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for server in servers:
            await asyncio.wait_for(health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True), 10)
            await server.stop(0)
