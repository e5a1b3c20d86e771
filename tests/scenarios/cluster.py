"""One system under test, two ways: in this event loop with the registry in memory, or as real processes with etcd."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

from halogen.v1 import scheduler_pb2
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.cli import publish, stack
from services.cli.control_client import ControlClient, Order
from services.cli.home import Home
from services.cli.published import Published
from services.common.background import background
from services.common.client import Client
from services.common.config import ProcessConfig
from services.common.lifecycle import Stop
from services.common.process import Serve
from services.common.registry.memory import MemoryStore
from services.common.registry.store import Store
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.telemetry.tracing import exporting
from services.engine.config import EngineConfig
from services.engine.serve import serve as serve_engine
from services.gateway.config import GatewayConfig
from services.gateway.serve import serve as serve_gateway
from services.loader.config import LoaderConfig
from services.loader.serve import serve as serve_loader
from services.scheduler.config import SchedulerConfig
from services.scheduler.serve import serve as serve_scheduler

Settings = Mapping[str, Mapping[str, Any]]  # role to the fields of its configuration

_ROOMS: Mapping[str, tuple[Serve[Any], Callable[..., ProcessConfig]]] = {
    "loader": (serve_loader, LoaderConfig),
    "engine": (serve_engine, EngineConfig),
    "scheduler": (serve_scheduler, SchedulerConfig),
    "gateway": (serve_gateway, GatewayConfig),
}
_START_S = 60.0
_DRAIN_S = 5.0
_QUIET: Settings = {"engine": {"threads": 1, "kv_arena_bytes": 64 << 20}}


class Cluster(NamedTuple):
    """Where a running system is reached.

    Attributes:
        pids: Role to process id, as they are now.
        end: Asks a role to end, as SIGTERM does; its exit status when it has.
        another: Starts one more process of a role, for the scope, and gives its address; in this process only. What it
            knows of the facts it may have `through` a store that a test has changed.
        registry: The facts; in this process only.
    """

    gateway: str
    scheduler: str
    engine: str
    loader: str
    store: Path
    pids: Callable[[], Mapping[str, int]]
    end: Callable[[str], Awaitable[int]]
    another: Callable[..., AbstractAsyncContextManager[str]] | None = None
    registry: MemoryStore | None = None

    def client(self) -> Client:
        return Client(self.gateway)

    async def publish(
        self,
        model: str,
        artifact: Path,
        *,
        cohort: str = "stable",
        reverify: bool = False,
        wait_s: float = _START_S,
    ) -> Published:
        """Registers and publishes an artifact directory, and waits until it is served."""
        order = Order(model, cohort, "", who="test", why="test")
        return await publish.publish(
            self.gateway, order, artifact, str(self.store), reverify=reverify, wait_s=wait_s
        )

    def control(self) -> ControlClient:
        return ControlClient(self.gateway)

    async def occupancy(self) -> scheduler_pb2.GetOccupancyResponse:
        async with connect(self.scheduler) as channel:
            return await SchedulerServiceStub(channel).GetOccupancy(scheduler_pb2.GetOccupancyRequest())


@contextlib.asynccontextmanager
async def in_process(folder: Path, settings: Settings) -> AsyncIterator[Cluster]:
    """All four rooms in the running loop, started in the order of their calls, ended against it."""
    home, registry = Home(folder / ".halogen"), MemoryStore()
    home.make()
    key = {"ticket_key_file": home.ticket_key()}
    needed: dict[str, dict[str, Any]] = {
        "loader": {"store": str(home.store), "cache_dir": folder / "cache"},
        "engine": dict(key),
        "scheduler": dict(key),
        "gateway": {},
    }
    base: dict[str, Any] = {"listen": Address("127.0.0.1", 0), "drain_s": _DRAIN_S, "grace_s": 0}

    def serving(role: str, store: Store = registry, **more: Any) -> AbstractAsyncContextManager[_Room]:
        serve, config = _ROOMS[role]
        fields = {**base, **needed[role], **_QUIET.get(role, {}), **settings.get(role, {}), **more}
        return _serving(serve, config(**fields), store)

    @contextlib.asynccontextmanager
    async def another(role: str, *, through: Store = registry, **more: Any) -> AsyncIterator[str]:
        async with serving(role, through, **more) as room:
            yield room.address

    async with contextlib.AsyncExitStack() as scope:
        rooms: dict[str, _Room] = {}

        async def end(role: str) -> int:
            rooms[role].stop.ask("the test ends it")
            await asyncio.shield(rooms[role].running)
            return 0

        for role in _ROOMS:
            rooms[role] = await scope.enter_async_context(serving(role))
            needed["engine"]["loader"] = rooms["loader"].address
        addresses = {role: room.address for role, room in rooms.items()}
        pids = dict.fromkeys(_ROOMS, os.getpid())
        yield Cluster(
            **addresses, store=home.store, pids=lambda: pids, end=end, another=another, registry=registry
        )


class _Room(NamedTuple):
    """A room that serves in this loop."""

    address: str
    stop: Stop
    running: asyncio.Future[None]


@contextlib.asynccontextmanager
async def _serving(serve: Serve[Any], config: ProcessConfig, registry: Store) -> AsyncIterator[_Room]:
    """One room, serving while the scope lasts; its cleanup is part of the scope's end."""
    stop, bound = Stop(), asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(_exported(config, serve(config, registry, stop, bound.set_result)))
    try:
        await asyncio.wait({running, bound}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield _Room(str(bound.result()), stop, running)
    finally:
        if not stop._asked.is_set():  # asked twice it would end the tests by force
            stop.ask("test ends")
        await running


async def _exported(config: ProcessConfig, life: Coroutine[Any, Any, None]) -> None:
    """A room's life with its spans told apart from the other rooms', as those of processes are."""
    with exporting(config.role, config.process_id):
        await life


@contextlib.asynccontextmanager
async def processes(folder: Path, settings: Settings) -> AsyncIterator[Cluster]:
    """etcd and the four processes, as `halogen up` starts them."""
    home = Home(folder / ".halogen")
    home.make()
    flags = {role: _flags({**_QUIET.get(role, {}), **settings.get(role, {})}) for role in stack.USUAL_PORTS}
    flags["loader"] += ["--cache-dir", str(folder / "cache")]
    async with contextlib.AsyncExitStack() as scope:
        addresses = scope.enter_context(stack.reserved_addresses())
        running = await scope.enter_async_context(stack.Stack(home, addresses, _say, flags))
        await scope.enter_async_context(background(running.failed()))
        children = {child.name: child for child in running.children}

        async def end(role: str) -> int:
            process = children[role]._process
            assert process is not None
            process.terminate()
            return await process.wait()

        yield Cluster(
            addresses.gateway,
            addresses.scheduler,
            addresses.engine,
            addresses.loader,
            home.store,
            lambda: {name: child.pid for name, child in children.items() if child.pid is not None},
            end,
        )


def _flags(fields: Mapping[str, Any]) -> list[str]:
    return [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _say(line: str) -> None:
    print(line, f"({os.getpid()})")
