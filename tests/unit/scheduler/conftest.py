"""A small engine on the wire, and a scheduler in this process that grants on it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from halogen.v1 import engine_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.engine_pb2_grpc import EngineServiceServicer, add_EngineServiceServicer_to_server
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.background import background
from services.common.lifecycle import Stop
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import EngineRecord
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.options import SERVER_OPTIONS
from services.scheduler.config import SchedulerConfig
from services.scheduler.serve import serve
from tests.unit.scheduler.builders import ARTIFACT, BLOCK_BYTES, engine_record

if TYPE_CHECKING:
    from halogen.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub


class FakeEngine(EngineServiceServicer):
    """Tells of its occupancy as a real engine does; what happens in it, the test says.

    Attributes:
        tickets: Live tickets by id.
        watchers: How many streams are open.
    """

    def __init__(self, store: MemoryStore, blocks: int, name: str = "e") -> None:
        self._store = store
        self._blocks = blocks
        self._name = name
        self._starts = 0
        self._feeds: set[asyncio.Queue[pb.WatchOccupancyResponse | None]] = set()
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self.instance_id = ""
        self.tickets: dict[str, pb.LiveTicket] = {}
        self.watched = asyncio.Event()

    async def start(self, *, at: int | None = None, registers: bool = True) -> None:
        """A fresh instance, on the same port as before or `at` another's; registered, unless the registry is away."""
        self._starts += 1
        self._port = self._port if at is None else at
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        add_EngineServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        await self._server.start()
        self.instance_id = self._record.instance_id
        if registers:
            await self.register()

    async def register(self) -> None:
        await self._store.put(keys.engine(self._record.id), self._record.encode())

    @property
    def _record(self) -> EngineRecord:
        return engine_record(self._name, start=self._starts, address=f"127.0.0.1:{self._port}")

    async def kill(self) -> None:
        """Dies without a word: streams break, live tickets are gone, the record stands."""
        self.tickets.clear()
        if self._server:
            await self._server.stop(None)

    async def deregister(self) -> None:
        await self._store.delete(keys.ENGINES + self._name)

    def redeem(self, *tickets: types_pb2.Ticket, prompt_tokens: int = 10, started: bool = True) -> None:
        """Takes tickets, as GenerateTokens would."""
        fresh = [
            pb.LiveTicket(
                ticket_id=ticket.ticket_id,
                reserved_bytes=ticket.reserved_bytes,
                prompt_tokens=prompt_tokens,
                prefill_started=started,
            )
            for ticket in tickets
        ]
        self.tickets |= {ticket.ticket_id: ticket for ticket in fresh}
        self._tell(delta=pb.OccupancyDelta(tickets=fresh))

    def close(self, *ticket_ids: str) -> None:
        for ticket_id in ticket_ids:
            del self.tickets[ticket_id]
        self._tell(delta=pb.OccupancyDelta(closed_ticket_ids=ticket_ids))

    def begin_anew(self) -> None:
        """Sends a fresh snapshot on every stream, as when one has fallen behind."""
        self._tell(snapshot=self._snapshot())

    def break_streams(self) -> None:
        """Ends every stream; the engine lives on."""
        for feed in self._feeds:
            feed.put_nowait(None)

    def GenerateTokens(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Not asked for here: tests redeem tickets by hand."""
        raise AssertionError

    async def WatchOccupancy(  # noqa: N802
        self, request: pb.WatchOccupancyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchOccupancyResponse]:
        feed: asyncio.Queue[pb.WatchOccupancyResponse | None] = asyncio.Queue(100)
        self._feeds.add(feed)
        try:
            yield self._message(snapshot=self._snapshot())
            self.watched.set()
            while message := await feed.get():
                yield message
        finally:
            self._feeds.discard(feed)

    def _snapshot(self) -> pb.OccupancySnapshot:
        return pb.OccupancySnapshot(
            arena_bytes=self._blocks * BLOCK_BYTES,
            engine_id=self._name,
            tickets=self.tickets.values(),
            generations=[
                pb.ResidentGeneration(
                    artifact_id=ARTIFACT,
                    state=types_pb2.GENERATION_STATE_ACTIVE,
                    block_bytes=BLOCK_BYTES,
                    block_tokens=16,
                    max_context_tokens=4096,
                )
            ],
        )

    def _tell(self, **event: Any) -> None:
        for feed in self._feeds:
            feed.put_nowait(self._message(**event))

    def _message(self, **event: Any) -> pb.WatchOccupancyResponse:
        return pb.WatchOccupancyResponse(engine_instance_id=self.instance_id, **event)


@pytest.fixture
def registry() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def make_engine(registry: MemoryStore) -> AsyncIterator[Callable[..., FakeEngine]]:
    """Makes engines of so many blocks, not started."""
    engines: list[FakeEngine] = []

    def make(blocks: int = 10, name: str = "e") -> FakeEngine:
        engines.append(FakeEngine(registry, blocks, name))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.kill()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "ticket.key"
    path.write_bytes(secrets.token_bytes(32))
    path.chmod(0o600)
    return path


Scheduling = Callable[..., contextlib.AbstractAsyncContextManager[grpc.aio.Channel]]


@pytest.fixture
def scheduling(registry: MemoryStore, key_file: Path) -> Scheduling:
    """Runs a scheduler, with further settings, for the scope; gives a channel to it."""

    @contextlib.asynccontextmanager
    async def scheduler(**settings: Any) -> AsyncIterator[grpc.aio.Channel]:
        defaults: dict[str, Any] = {
            "id": "s",
            "listen": "127.0.0.1:0",
            "ticket_key_file": key_file,
            "drain_s": 0,
            "grace_s": 0,
        }
        config = SchedulerConfig(**(defaults | settings))
        stop, bound = Stop(), asyncio.get_running_loop().create_future()
        ended = asyncio.Event()

        async def run() -> None:
            await serve(config, registry, stop, bound.set_result)
            ended.set()

        async with background(run()):
            address: Address = await bound
            async with connect(str(address)) as channel:
                yield channel
            stop.ask("end of test")
            await ended.wait()

    return scheduler


@pytest.fixture
async def scheduler(scheduling: Scheduling) -> AsyncIterator[SchedulerServiceAsyncStub]:
    """A scheduler with usual settings."""
    async with scheduling() as channel:
        yield SchedulerServiceStub(channel)
