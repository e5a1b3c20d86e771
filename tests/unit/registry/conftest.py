"""A real etcd of the tests' own, and the stores that must behave alike."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from services.cli.embedded_etcd import command, find_etcd
from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.memory import MemoryStore
from services.common.registry.store import Store
from tests.unit.registry.stores import Stores

# Should the test run be killed, no server outlives it.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EtcdServer:
    """One real etcd process on loopback, which keeps its ports and its data over kill and start."""

    def __init__(self, directory: Path, extra: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._data, self._peer_port = directory / "data", free_port()
        etcd = command(self._data, self.port, self._peer_port)
        self._argv = [*DIE_WITH_PARENT, *etcd, "--unsafe-no-fsync", *extra]
        self._process: subprocess.Popen[bytes] | None = None

    def speak_tls(self) -> None:
        """Listens for https; the certificate's flags are the caller's."""
        url = f"https://{self.endpoint}"
        self._argv += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait(10)

    def restore(self, backup: Path) -> None:
        """What it has is replaced by what `control("snapshot", "save", ...)` has written; to be called while it is down."""
        shutil.rmtree(self._data)
        peer = f"http://127.0.0.1:{self._peer_port}"
        member = [
            "--name",
            "local",
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"local={peer}",
        ]
        tool = find_etcd().with_name("etcdutl")
        subprocess.run(
            [str(tool), "snapshot", "restore", str(backup), "--data-dir", str(self._data), *member],
            check=True,
            capture_output=True,
        )

    def control(self, *arguments: str) -> str:
        """Runs etcdctl, waiting for the server if need be."""
        tool = find_etcd().with_name("etcdctl")
        flags = ["--endpoints", self.endpoint, "--dial-timeout", "10s", "--command-timeout", "10s"]
        return subprocess.run(
            [str(tool), *flags, *arguments], check=True, capture_output=True, text=True
        ).stdout

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that neither kill nor configure it."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[Callable[..., EtcdServer]]:
    """Makes an etcd of the test's own, not started, with further flags; killed at the test's end."""
    servers: list[EtcdServer] = []

    def make(*extra: str) -> EtcdServer:
        servers.append(EtcdServer(tmp_path / f"etcd{len(servers)}", extra))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture
def own_etcd(make_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """A running etcd that the test may kill."""
    server = make_etcd()
    server.start()
    return server


@pytest.fixture
async def etcd_store(shared_etcd: EtcdServer) -> AsyncIterator[Store]:
    """A store with a prefix that no other test has."""
    wire = EtcdWire(Access(endpoints=(shared_etcd.endpoint,)))
    yield EtcdStore(wire, f"{secrets.token_hex(4)}/")
    await wire.close()


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each implementation of the port in turn."""
    if request.param == "memory":
        return MemoryStore()
    found: Store = request.getfixturevalue("etcd_store")
    return found


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    opened = Stores()
    yield opened
    await opened.close()


class Relay:
    """A TCP relay in front of a server that loses what passes through it.

    It passes bytes between clients and one server until it is told not to.

    Attributes:
        endpoint: Where clients connect.
        drop_requests: Swallow what clients send.
        drop_answers: Swallow what the server sends.
        refuse: Close new connections at once.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self.endpoint = ""
        self.drop_requests = False
        self.drop_answers = False
        self.refuse = False

    def cut(self) -> None:
        """Breaks all connections."""
        for writer in self._open:
            writer.transport.abort()

    def swallow(self) -> None:
        """From now on nothing passes on the connections that stand, and nobody is told; new ones are as they were."""
        self._silent |= self._open

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.close()
            return
        host, port = self._target.split(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        self._open |= {writer, up_writer}
        with contextlib.suppress(ConnectionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, "drop_requests"))
                group.create_task(self._pump(up_reader, writer, "drop_answers"))
        self._open -= {writer, up_writer}
        self._silent -= {writer, up_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: str) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if not getattr(self, drop) and writer not in self._silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def open_relay(target: str) -> AsyncIterator[Relay]:
    """A relay to ``host:port`` on a free port of its own."""
    made = Relay(target)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.cut()
        server.close()
        await server.wait_closed()


@pytest.fixture
def relay() -> Callable[[str], contextlib.AbstractAsyncContextManager[Relay]]:
    """Opens a relay that loses what it is told to."""
    return open_relay
