"""A whole gateway over the wire, between a loader, a scheduler and an engine that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halogen.v1 import (
    engine_pb2,
    engine_pb2_grpc,
    loader_pb2,
    loader_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    types_pb2,
)
from services.common.client import Client
from services.common.errors import (
    HalogenError,
    NotFound,
)
from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.lifecycle import Stop
from services.common.registry import keys
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.memory import MemoryStore
from services.common.registry.records import (
    EngineRecord,
    GenerationRecord,
    GenerationState,
    LoaderRecord,
    Serving,
    Target,
)
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.server import RpcServer
from services.gateway.config import GatewayConfig
from services.gateway.serve import serve

ARTIFACT = ArtifactId("a" * 64)
MODEL, STABLE = ModelName("stories"), Cohort.STABLE
LOOPBACK = Address("127.0.0.1", 0)
ENGINE = keys.engine(ProcessId("engine-a"))
Step = tuple[int, ...] | HalogenError | asyncio.Event


def holding(artifact_id: ArtifactId, revision: int) -> EngineRecord:
    """What an engine says that has the artifact ready."""
    held = GenerationRecord(
        model=MODEL,
        cohort=STABLE,
        revision=Revision(revision),
        artifact_id=artifact_id,
        state=GenerationState.ACTIVE,
    )
    return EngineRecord(
        id=ProcessId("engine-a"),
        instance_id=InstanceId("engine-a-1"),
        address="127.0.0.1:1",
        host="h",
        start_time="2026-01-01T00:00:00Z",
        runtime_build="test/1",
        generations=(held,),
    )


class Peers(
    loader_pb2_grpc.LoaderServiceServicer,
    scheduler_pb2_grpc.SchedulerServiceServicer,
    engine_pb2_grpc.EngineServiceServicer,
):
    """Loader, scheduler and engine in one server; the engine's script is ids, errors and events, then its end."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.address = ""
        self.script: list[Step] = []
        self.refusal: HalogenError | None = None
        self.frozen = False
        self.granting = asyncio.Event()
        self.asked: list[engine_pb2.GenerateTokensRequest] = []
        self.sent = 0
        self.engine_left = asyncio.Event()
        self.released = asyncio.Event()

    async def ReadFile(  # noqa: N802  # gRPC's name
        self, request: loader_pb2.ReadFileRequest, context: Any
    ) -> AsyncIterator[loader_pb2.ReadFileResponse]:
        if request.path not in self.files:
            raise NotFound("no such file")
        content = self.files[request.path]
        for start in range(0, len(content), 4096):
            yield loader_pb2.ReadFileResponse(data=content[start : start + 4096])

    async def GrantTicket(  # noqa: N802  # gRPC's name
        self, request: scheduler_pb2.GrantTicketRequest, context: Any
    ) -> scheduler_pb2.GrantTicketResponse:
        self.granting.set()
        if self.frozen:
            await asyncio.Event().wait()
        if self.refusal:
            raise self.refusal
        ticket = types_pb2.Ticket(
            ticket_id="t", engine_instance_id="i", artifact_id=request.artifact_id, term=1, mac=b"mac"
        )
        ticket.expire_time.FromNanoseconds(1_700_000_000_123_456_789)
        return scheduler_pb2.GrantTicketResponse(
            ticket=ticket, engine_id="engine-a", engine_address=self.address
        )

    async def ReleaseTicket(  # noqa: N802  # gRPC's name
        self, request: scheduler_pb2.ReleaseTicketRequest, context: Any
    ) -> scheduler_pb2.ReleaseTicketResponse:
        self.released.set()
        return scheduler_pb2.ReleaseTicketResponse()

    async def GenerateTokens(  # noqa: N802  # gRPC's name
        self, request: engine_pb2.GenerateTokensRequest, context: Any
    ) -> AsyncIterator[engine_pb2.GenerateTokensResponse]:
        self.asked.append(request)
        try:
            for step in self.script:
                if isinstance(step, HalogenError):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield self._message(step)
                    self.sent += 1
            yield self._message((), types_pb2.FINISH_REASON_LENGTH)
        finally:
            self.engine_left.set()

    # Nobody calls these here.
    PrepareArtifact = ConvertCheckpoint = GetOccupancy = WatchOccupancy = None  # type: ignore[assignment]

    def _message(
        self, token_ids: tuple[int, ...], finish: types_pb2.FinishReason = types_pb2.FINISH_REASON_UNSPECIFIED
    ) -> engine_pb2.GenerateTokensResponse:
        return engine_pb2.GenerateTokensResponse(
            token_ids=token_ids,
            engine_id="engine-a",
            artifact_id=ARTIFACT,
            runtime_build="test/1",
            finish_reason=finish,
        )


class Gateway:
    """A running gateway, its peers and a client."""

    def __init__(self, peers: Peers, peer_server: RpcServer, store: MemoryStore) -> None:
        self.peers, self.peer_server, self.store = peers, peer_server, store
        self.stop = Stop()
        self.is_ending = False
        self.address = ""
        self.client = Client("")

    async def register_peers(self) -> None:
        """The loader and the leading scheduler are where the registry says."""
        loader = LoaderRecord(
            id=ProcessId("loader-a"),
            instance_id=InstanceId("loader-1"),
            address=self.peers.address,
            host="h",
            start_time="2026-01-01T00:00:00+00:00",
        )
        await self.store.put(keys.loader(loader.id), loader.encode())
        await self.lead(self.peers.address, term=1)

    async def lead(self, address: str, term: int) -> None:
        """The scheduler at `address` leads from now on."""
        leader = LeaderRecord(
            id=ProcessId(f"s{term}"), instance_id=InstanceId(f"s{term}-1"), address=address, term=term
        )
        await self.store.put(keys.SCHEDULER_LEADER, leader.encode())

    async def publish(self, artifact_id: ArtifactId = ARTIFACT, revision: int = 1) -> None:
        target = Target(revision=Revision(revision), artifact_id=artifact_id, who="w", why="y")
        record = Serving(revision=Revision(revision), artifact_id=artifact_id)
        await self.store.put(keys.target(MODEL, STABLE), target.encode())
        await self.store.put(keys.serving(MODEL, STABLE), record.encode())
        await self.store.put(ENGINE, holding(artifact_id, revision).encode())

    def end(self) -> None:
        """Asks the gateway to end; once, as the second time would be by force."""
        if not self.is_ending:
            self.is_ending = True
            self.stop.ask("the test says so")

    async def ready(self) -> None:
        async with connect(self.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            watch.cancel()


async def start_peers(files: dict[str, bytes]) -> tuple[Peers, RpcServer]:
    peers, server = Peers(files), RpcServer([])
    loader_pb2_grpc.add_LoaderServiceServicer_to_server(peers, server.grpc_server)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(peers, server.grpc_server)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(peers, server.grpc_server)
    peers.address = str(await server.start(LOOPBACK))
    return peers, server


@pytest.fixture
async def other(stories_files: dict[str, bytes]) -> AsyncIterator[Peers]:
    """Another loader, scheduler and engine, not in the registry."""
    peers, server = await start_peers(stories_files)
    yield peers
    await server.stop(0)


@pytest.fixture
async def gateway(stories_files: dict[str, bytes]) -> AsyncIterator[Gateway]:
    """A gateway that is ready to serve one model."""
    peers, server = await start_peers(stories_files)
    running = Gateway(peers, server, MemoryStore())
    await running.register_peers()
    config = GatewayConfig(
        id="gateway-a",
        listen=LOOPBACK,
        drain_s=5,
        grace_s=0,
        max_prompt_bytes=1_000,
    )
    started: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(config, running.store, running.stop, started.set_result))
        running.address = str(await started)
        await running.publish()
        await running.ready()
        async with Client(running.address, max_tries=1) as running.client:
            yield running
        running.end()
    await server.stop(0)
