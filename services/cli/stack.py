"""The five processes of a system on one machine: etcd, loader, engine, scheduler, gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Final, Self

from services.cli import embedded_etcd
from services.cli.console import CommandError
from services.cli.home import Home
from services.cli.ports import Ports
from services.cli.run_state import Addresses
from services.cli.supervisor import Child, Command
from services.common.own_python import module_command

Flags = Mapping[str, Sequence[str]]

USUAL_PORTS: Final = {
    "gateway": 50051,
    "scheduler": 50052,
    "engine": 50053,
    "loader": 50054,
    "etcd": 2379,
    "etcd_peer": 2380,
}
USUAL_HTTP_PORTS: Final = {"gateway": 50061, "scheduler": 50062, "engine": 50063, "loader": 50064}
DRAIN_S: Final = 5.0
ENDING: Final = ("--grace-s", "0", "--drain-s", str(DRAIN_S))  # who calls is ended before who is called
NO_FLAGS: Final[Flags] = MappingProxyType({})
PATIENCE_S: Final = DRAIN_S + 5.0


@contextlib.contextmanager
def reserved_addresses() -> Iterator[Addresses]:
    """Loopback addresses, on the usual ports where those are free; no other launcher takes them meanwhile."""
    with Ports() as ports:
        yield Addresses(**_choose(ports, USUAL_PORTS), http=_choose(ports, USUAL_HTTP_PORTS))


def _choose(ports: Ports, usual: Mapping[str, int]) -> dict[str, str]:
    return {role: f"127.0.0.1:{ports.choose(port)}" for role, port in usual.items()}


def process_id(home: Home, role: str) -> str:
    """What the home's process of that role, or its etcd, is called: like no other home's."""
    return f"{role}-{home.system_id()}"


def commands(home: Home, addresses: Addresses, flags: Flags = NO_FLAGS) -> list[Command]:
    """How to start the five, in the order in which they are started."""
    key = str(home.ticket_key())
    peers = {
        "loader": ["--store", home.loaders_store, *(["--cache-dir", str(home.cache)] if home.cache else [])],
        "engine": ["--loader", addresses.loader, "--ticket-key-file", key],
        "scheduler": ["--ticket-key-file", key],
        "gateway": [],
    }
    etcd = embedded_etcd.command(
        home.etcd_data, _port(addresses.etcd), _port(addresses.etcd_peer), name=process_id(home, "etcd")
    )
    registry = ["--etcd", addresses.etcd, "--etcd-prefix", f"halogen-{home.system_id()}/"]
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    started = [Command(name="etcd", argv=tuple(etcd), log=home.logs / "etcd.log", environment=environment)]
    for role, needed in peers.items():
        listen = ["--listen", getattr(addresses, role), "--http-listen", addresses.http[role]]
        common = [*listen, *registry, *ENDING]
        more = [*needed, *flags.get(role, ())]
        argv = (*module_command(f"services.{role}"), "--id", process_id(home, role), *common, *more)
        started.append(Command(name=role, argv=argv, log=home.logs / f"{role}.log", environment=environment))
    return started


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class Stack:
    """The processes, running for as long as the scope lasts.

    Args:
        home: Where they keep their things; made by the caller.
        addresses: Where they shall listen.
        say: Told one line each time one of them dies unasked.
        flags: What else each role is told.
    """

    def __init__(
        self, home: Home, addresses: Addresses, say: Callable[[str], None], flags: Flags = NO_FLAGS
    ) -> None:
        self.addresses = addresses
        for command in (started := commands(home, addresses, flags)):
            command.log.write_bytes(b"")  # a log tells of one run
        self.children = [Child(command, say) for command in started]
        self._supervision: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._supervision = [
            asyncio.create_task(child.keep_running(), name=f"supervise-{child.name}")
            for child in self.children
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._end())

    async def _end(self) -> None:
        """Ends them against the order of starting: nobody loses what it still calls."""
        for child in reversed(self.children):
            await child.end(PATIENCE_S)
        await asyncio.gather(*self._supervision)

    async def failed(self) -> None:
        """Returns never; raises CommandError once a process has died too often for the system to stand up."""
        waits = {asyncio.ensure_future(child.gave_up.wait()): child for child in self.children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        raise CommandError(waits[done.pop()].describe_failure())
