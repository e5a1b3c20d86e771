"""``python -m tests.unit.cli.busy_launcher LOG COUNT``: starts children while it calls over gRPC; prints how each ended."""

import asyncio
import os
import sys
from pathlib import Path

import grpc  # first: gRPC decides when it is imported whether it does something about forks
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.supervisor import Child, Command
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer


async def call(address: str) -> None:
    """Calls for ever, over one connection after the other."""
    while True:
        async with connect(address) as channel:
            stub: health_pb2_grpc.HealthStub = health_pb2_grpc.HealthStub(channel)
            for _ in range(20):
                await stub.Check(health_pb2.HealthCheckRequest())


async def main(log: Path, count: int) -> None:
    assert grpc.aio
    server = RpcServer([])
    address = str(await server.start(Address("127.0.0.1", 0)))
    calls = [asyncio.ensure_future(call(address)) for _ in range(2)]
    command = Command(name="child", argv=("true",), log=log, environment=dict(os.environ))

    async def start(times: int) -> list[int]:
        return [await Child(command, print)._run_once() for _ in range(times)]

    statuses = await asyncio.gather(*(start(count // 4) for _ in range(4)))
    print([status for some in statuses for status in some])
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
