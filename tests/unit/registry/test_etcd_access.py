"""Mutual TLS, user and password against a real etcd, and what a refusal looks like."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from services.common.config import ProcessConfig
from services.common.errors import (
    HalogenError,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from services.common.registry.etcd import EtcdStore, open_store
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.store import Ambiguous, Changes, Snapshot

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer

KEY_FLAGS = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Config(ProcessConfig):
    role: ClassVar[str] = "test"


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, cwd=directory, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a server's and a client's certificate that it signed."""
    at = tmp_path_factory.mktemp("certificates")
    openssl(
        at, "req", "-x509", *KEY_FLAGS, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem"
    )
    (at / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        request = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(at, "req", *KEY_FLAGS, *request)
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        openssl(at, "x509", "-req", "-in", f"{name}.csr", *signing, "-days", "2", "-out", f"{name}.pem")
    return at


@pytest.fixture
def tls_etcd(make_etcd: Callable[..., EtcdServer], certificates: Path) -> EtcdServer:
    """An etcd that speaks TLS only and wants a client certificate."""
    files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}
    server = make_etcd(
        *(f"--{flag}={certificates / name}" for flag, name in files.items()), "--client-cert-auth"
    )
    server.speak_tls()
    server.start()
    return server


async def first_put(config: Config) -> None:
    """Writes one key, however long the server takes to come up."""
    async with open_store(config) as store:
        await store.put("a", b"1")


async def test_mutual_tls_reaches_etcd(tls_etcd: EtcdServer, certificates: Path) -> None:
    """With the CA and a client certificate from files, reads and writes pass."""
    config = Config(
        etcd=(tls_etcd.endpoint,),
        etcd_ca_file=certificates / "ca.pem",
        etcd_cert_file=certificates / "client.pem",
        etcd_key_file=certificates / "client.key",
    )
    async with open_store(config) as store:
        await store.put("a", b"1")
        entry = await store.get("a")
    assert entry is not None
    assert b"1" == entry.value


async def test_a_file_that_is_not_there_is_said() -> None:
    """A missing certificate file is the operator's to mend, so the message names it."""
    with pytest.raises(InvalidRequest, match="/nowhere/ca"):
        await first_put(Config(etcd_ca_file=Path("/nowhere/ca.pem")))


async def test_an_endpoint_may_be_written_as_a_url(shared_etcd: EtcdServer) -> None:
    """http:// before host:port, as etcd's own tools have it, is understood."""
    await first_put(Config(etcd=(f"http://{shared_etcd.endpoint}",), etcd_prefix="url/"))


async def test_without_a_client_certificate_etcd_does_not_answer(
    tls_etcd: EtcdServer, certificates: Path
) -> None:
    """A missing certificate ends in one clear error within the time limit."""
    both = Config(
        etcd=(tls_etcd.endpoint,),
        etcd_ca_file=certificates / "ca.pem",
        etcd_cert_file=certificates / "client.pem",
        etcd_key_file=certificates / "client.key",
    )
    await first_put(both)
    async with open_store(Config(etcd=(tls_etcd.endpoint,), etcd_ca_file=certificates / "ca.pem")) as store:
        assert isinstance(store, EtcdStore)
        store._wire.timeout_s = 0.6
        with pytest.raises(Unavailable, match="TLS"):
            await store.get("a")


@pytest.fixture
def guarded_etcd(own_etcd: EtcdServer) -> EtcdServer:
    """An etcd where user `eng` may use the prefix m/ and nothing else."""
    for command in (
        "user add root:secret",
        "user grant-role root root",
        "user add eng:password",
        "role add m",
        "role grant-permission m readwrite m/ --prefix=true",
        "user grant-role eng m",
        "auth enable",
    ):
        own_etcd.control(*command.split())
    return own_etcd


def config_of(server: EtcdServer, directory: Path, password: str = "password", prefix: str = "m/") -> Config:
    file = directory / "password"
    file.write_text(f"{password}\n")
    return Config(etcd=(server.endpoint,), etcd_user="eng", etcd_password_file=file, etcd_prefix=prefix)


async def test_a_user_reaches_its_prefix(guarded_etcd: EtcdServer, tmp_path: Path) -> None:
    """User and password open the prefix that the user's role allows, leases included."""
    async with open_store(config_of(guarded_etcd, tmp_path)) as store, store.lease(5) as lease:
        await store.put("a", b"1", lease.id)
        assert await store.get("a") is not None


@pytest.mark.parametrize(
    ("password", "prefix", "error"),
    [("wrong", "m/", Unauthenticated), ("password", "other/", PermissionDenied)],
)
async def test_a_refusal_is_an_error_of_the_tree(
    guarded_etcd: EtcdServer, tmp_path: Path, password: str, prefix: str, error: type[HalogenError]
) -> None:
    """A wrong password and a foreign prefix are told apart."""
    async with open_store(config_of(guarded_etcd, tmp_path, password, prefix)) as store:
        with pytest.raises(error):
            await store.put("a", b"1")


async def test_no_user_where_etcd_wants_one(guarded_etcd: EtcdServer) -> None:
    """Without a user the message says which setting is missing."""
    async with open_store(Config(etcd=(guarded_etcd.endpoint,), etcd_prefix="m/")) as store:
        with pytest.raises(Unauthenticated, match="--etcd-user"):
            await store.put("a", b"1")


async def test_a_token_that_died_with_the_server_is_renewed(guarded_etcd: EtcdServer, tmp_path: Path) -> None:
    """After kill -9 and restart etcd knows no token of before: writes, lease and watch authenticate anew."""
    seen: list[bytes | None] = []
    snapshots = 0
    config = config_of(guarded_etcd, tmp_path)
    async with open_store(config) as store, store.lease(5) as lease:
        await store.put("w/a", b"0")
        async with contextlib.aclosing(store.watch("w/")) as watch:
            async for message in watch:
                if isinstance(message, Changes):
                    seen += [change.value for change in message.changes]
                else:
                    snapshots += isinstance(message, Snapshot)
                if len(seen) == 1:
                    guarded_etcd.kill()
                    guarded_etcd.start()
                if len(seen) == 3:
                    break
                following = b"%d" % (len(seen) + 1)
                try:
                    await store.put("w/a", following, lease.id)
                except Ambiguous:  # sent to the dead server before its connection was seen to end
                    await store.put("w/a", following, lease.id)
        assert not lease.lost.is_set()
    assert [b"1", b"2", b"3"] == seen
    assert 1 == snapshots


async def test_a_watch_alone_renews_its_token(guarded_etcd: EtcdServer, tmp_path: Path) -> None:
    """A process that only watches authenticates anew by itself after etcd's restart, and misses nothing."""
    config = config_of(guarded_etcd, tmp_path)
    async with (
        open_store(config) as watching,
        contextlib.aclosing(watching.watch("w/")) as watch,
        asyncio.timeout(10),
    ):
        assert isinstance(await anext(watch), Snapshot)
        for value in (b"1", b"2"):
            async with open_store(config) as writing:
                await writing.put("w/a", value)
            message = await anext(watch)
            assert isinstance(message, Changes)
            assert [value] == [change.value for change in message.changes]
            guarded_etcd.kill()
            guarded_etcd.start()


async def test_concurrent_calls_share_one_authentication(guarded_etcd: EtcdServer) -> None:
    """However many calls find a stale token, one of them asks for a new one."""
    wire = EtcdWire(Access(endpoints=(guarded_etcd.endpoint,), user="eng", password="password"))
    connection = await wire.connect(5)
    asked = 0
    authenticate = connection.auth.Authenticate

    def counted(*arguments: object, **named: object) -> object:
        nonlocal asked
        asked += 1
        return authenticate(*arguments, **named)

    connection.auth.Authenticate = counted
    store = EtcdStore(wire, "m/")
    await asyncio.gather(*(store.put(f"{n}", b"1") for n in range(20)))
    wire._token = "unknown.1"
    await asyncio.gather(*(store.put(f"{n}", b"2") for n in range(20)))
    await wire.close()
    assert 2 == asked
