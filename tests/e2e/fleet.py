"""A system of real processes, as many of each kind as asked for, supervised as `halogen up` supervises its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from halogen.v1 import scheduler_pb2, types_pb2
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.cli import embedded_etcd, publish
from services.cli.control_client import ControlClient, Order
from services.cli.home import Home
from services.cli.ports import Ports
from services.cli.published import Published
from services.cli.supervisor import Child, Command
from services.common.rpc.client import connect

ACTIVE = types_pb2.GENERATION_STATE_ACTIVE
ROLES = ("loader", "engine", "scheduler", "gateway")
START_S = 60.0
PROMISED_S = 30.0  # three lives of a ticket
PATIENCE_S = 15.0
QUIET = {"engine": ("--threads", "1", "--kv-arena-bytes", str(64 << 20))}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the system, whichever of its lives it is in."""

    role: str
    id: str
    address: str
    child: Child

    def send(self, number: signal.Signals) -> None:
        assert self.child.pid is not None
        os.kill(self.child.pid, number)

    def send_if_up(self, number: signal.Signals) -> bool:
        """The same, unless it is dead and not started anew yet; tells whether."""
        process = self.child._process
        if process is None or process.returncode is not None:
            return False
        try:
            self.send(number)
        except ProcessLookupError:  # reaped, and we have yet to hear of it
            return False
        return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A running system.

    Attributes:
        members: In the order of their starting: etcd first, gateways last.
        store: Where artifact files go.
        deaths: A line for every death that nobody asked the supervisor for, as it comes.
    """

    members: tuple[Member, ...]
    store: Path
    deaths: asyncio.Queue[str]

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

    @property
    def gateway(self) -> str:
        return self.of("gateway")[0].address

    async def publish(self, model: str, artifact: Path) -> Published:
        """Registers and publishes an artifact directory as stable, and waits until it is served."""
        order = Order(model, "stable", "", who="test", why="test")
        return await publish.publish(
            self.gateway, order, artifact, str(self.store), reverify=False, wait_s=START_S
        )

    async def stands(self) -> None:
        """Returns once every member is registered and every engine has something ready."""
        async with (
            ControlClient(self.gateway) as control,
            asyncio.timeout(START_S),
            contextlib.aclosing(control.watch()) as statuses,
        ):
            async for status in statuses:
                there = {process.id for process in status.processes}
                engines = [process for process in status.processes if process.role == "engine"]
                ready = all(any(one.state == ACTIVE for one in engine.generations) for engine in engines)
                if ready and there >= {member.id for member in self.members[1:]}:
                    return

    async def nothing_is_promised(self) -> None:
        """The leader's ledger, once all is over, comes to equal the engines' tickets, which are none.

        The last deltas are on their way, and what a gateway that was killed had been granted is promised until it expires.
        """
        left = await self._promised()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROMISED_S):
                while any(left):
                    await asyncio.sleep(0.05)
                    left = await self._promised()
        assert [0] * len(left) == left

    async def _promised(self) -> list[int]:
        """Tickets and bytes of every engine, by the ledger that has them."""
        answers = [await _occupancy(member) for member in self.of("scheduler")]
        engines = [engine for answer in answers for engine in answer.engines]
        assert engines
        return [figure for engine in engines for figure in (engine.tickets, engine.promised_bytes)]


@contextlib.asynccontextmanager
async def fleet(
    folder: Path, replicas: Mapping[str, int], flags: Mapping[str, Sequence[str]] | None = None
) -> AsyncIterator[Fleet]:
    """The system, running for as long as the scope lasts; one of each kind unless `replicas` says otherwise."""
    home, deaths = Home(folder / ".halogen"), asyncio.Queue[str]()
    home.make()
    with Ports() as ports:
        members = tuple(_members(home, ports, replicas, flags or {}, deaths))
        running = [asyncio.create_task(member.child.keep_running(), name=member.id) for member in members]
        try:
            yield Fleet(members=members, store=home.store, deaths=deaths)
        finally:
            for role in reversed(("etcd", *ROLES)):  # who calls before who is called
                ending = [member.child.end(PATIENCE_S) for member in members if member.role == role]
                await asyncio.gather(*ending)
            await asyncio.gather(*running)


async def _occupancy(member: Member) -> scheduler_pb2.GetOccupancyResponse:
    async with connect(member.address) as channel:
        stub = SchedulerServiceStub(channel)
        return await stub.GetOccupancy(scheduler_pb2.GetOccupancyRequest(), wait_for_ready=True, timeout=10)


def _members(
    home: Home,
    ports: Ports,
    replicas: Mapping[str, int],
    flags: Mapping[str, Sequence[str]],
    deaths: asyncio.Queue[str],
) -> list[Member]:
    port = ports.choose(2379)
    etcd = f"127.0.0.1:{port}"
    argv = tuple(embedded_etcd.command(home.etcd_data, port, ports.choose(2380), name="etcd"))
    members = [_member(home, "etcd", "etcd", etcd, argv, deaths)]
    needed = _needed(home, folder_cache=home.root / "cache")
    for role in ROLES:
        for number in range(1, replicas.get(role, 1) + 1):
            name, address = f"{role}-{number}", f"127.0.0.1:{ports.choose(0)}"
            common = ("--id", name, "--listen", address, "--etcd", etcd, "--drain-s", "10")
            more = (*needed[role], *QUIET.get(role, ()), *flags.get(role, ()))
            argv = (sys.executable, "-m", f"services.{role}", *common, *more)
            members.append(_member(home, role, name, address, argv, deaths))
            if role == "loader" and number == 1:
                needed["engine"] = (*needed["engine"], "--loader", address)
    return members


def _needed(home: Home, folder_cache: Path) -> dict[str, tuple[str, ...]]:
    key = ("--ticket-key-file", str(home.ticket_key()))
    return {
        "loader": ("--store", str(home.store), "--cache-dir", str(folder_cache)),
        "engine": key,
        "scheduler": key,
        "gateway": (),
    }


def _member(
    home: Home, role: str, name: str, address: str, argv: tuple[str, ...], deaths: asyncio.Queue[str]
) -> Member:
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "OMP_NUM_THREADS": "1"}
    command = Command(name=name, argv=argv, log=home.logs / f"{name}.log", environment=environment)
    return Member(role=role, id=name, address=address, child=Child(command, deaths.put_nowait))
