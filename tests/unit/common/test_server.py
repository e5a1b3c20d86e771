"""A server tells its health, lists its services, and ends when its work has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from halogen.v1 import inference_pb2
from services.common.errors import Unavailable
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer

SERVICE = "halogen.v1.InferenceService"
LOOPBACK = Address("127.0.0.1", 0)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def server() -> AsyncIterator[tuple[RpcServer, str]]:
    started = RpcServer([SERVICE])
    bound = await started.start(LOOPBACK)
    yield started, str(bound)
    await started.stop(0)


async def test_s_e6_a_watch_stays_open_and_sees_every_change(server: tuple[RpcServer, str]) -> None:
    """Not ready, ready, and not ready again when the server begins to end, on one stream; then a status.

    Fault injection: turns red when RpcServer.stop does not call readiness.end().
    """
    started, address = server
    async with connect(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        seen = [(await watch.read()).status]
        started.readiness.set("")
        seen.append((await watch.read()).status)
        stopping = asyncio.ensure_future(started.stop(5))
        seen.append((await watch.read()).status)
        await stopping
        assert grpc.StatusCode.UNAVAILABLE is await watch.code()
    assert [NOT_SERVING, SERVING, NOT_SERVING] == seen


async def test_a_model_has_its_own_health(server: tuple[RpcServer, str]) -> None:
    """model@cohort comes, serves and goes; its watch says so, and a Check of what has gone is NOT_FOUND."""
    started, address = server
    request = health_pb2.HealthCheckRequest(service="m@stable")
    async with connect(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(request)
        seen = [(await watch.read()).status]
        for names in ({"m@stable": False}, {"m@stable": True}, {}):
            started.readiness.set("", names)
            seen.append((await watch.read()).status)
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health.Check(request)
        listed = await health.List(health_pb2.HealthListRequest())
    assert [SERVICE_UNKNOWN, NOT_SERVING, SERVING, SERVICE_UNKNOWN] == seen
    assert grpc.StatusCode.NOT_FOUND is raised.value.code()
    assert {"": SERVING, SERVICE: SERVING} == {name: each.status for name, each in listed.statuses.items()}


async def test_an_unknown_service_has_no_health(server: tuple[RpcServer, str]) -> None:
    """grpc's own health service keeps its own status, NOT_FOUND, through our interceptor."""
    async with connect(server[1]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert grpc.StatusCode.NOT_FOUND is raised.value.code()


async def test_reflection_describes_the_services(server: tuple[RpcServer, str]) -> None:
    """A client with no stubs finds the service, its methods and their messages."""

    def look() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(server[1]) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            service = DescriptorPool(database).FindServiceByName(SERVICE)
            return list(database.get_services()), [method.name for method in service.methods]

    services, methods = await asyncio.to_thread(look)
    assert SERVICE in services
    assert [
        method.name for method in inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods
    ] == methods


async def test_a_taken_port_is_refused(server: tuple[RpcServer, str]) -> None:
    """Two servers on one port is a fault that is seen at once."""
    second = RpcServer([SERVICE])
    with pytest.raises(Unavailable, match="another port"):
        await second.start(Address.parse(server[1]))
    await second.stop(0)
