"""A gateway that cannot be asked: whether anybody is there, and what TLS may have to do with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import status
from services.cli.asked_gateway import AskedGateway
from services.cli.console import CommandError
from services.cli.control_client import ControlClient
from services.cli.main import app
from services.cli.unreached import explaining
from services.common.auth.tls import KeyPair, ServerTls
from services.common.errors import Unavailable
from services.common.rpc.address import Address
from services.common.rpc.credentials import NO_CREDENTIALS, Credentials
from services.common.rpc.door import Door
from services.common.rpc.server import RpcServer
from tests.certificates import Authority
from tests.certificates import KeyPair as Files

PATIENCE_S = 0.2
HOUR = timedelta(hours=1)


@contextlib.asynccontextmanager
async def secured(own: Files, client_ca: Path | None = None) -> AsyncIterator[str]:
    """The address of a server that is called by TLS."""
    pair = KeyPair(own.certificate.read_bytes(), own.key.read_bytes())
    tls = ServerTls(own=pair, client_ca=client_ca.read_bytes() if client_ca else None)
    server = RpcServer((), door=Door(tls=tls))
    yield str(await server.start(Address("127.0.0.1", 0)))
    await server.stop(0)


async def line(address: str, credentials: Credentials) -> str:
    """What `halogen status` ends with."""
    gateway = AskedGateway(address, PATIENCE_S, credentials)
    with pytest.raises(CommandError) as refused, explaining(gateway):
        await status.read(gateway.endpoint)
    return str(refused.value)


async def test_where_tls_is_in_the_way_the_line_says_so(tmp_path: Path) -> None:
    """Called in the clear, by another authority, under another name, expired, or with no certificate of ours: nobody is
    told to start a gateway.

    Fault injection: turns red when `_listens` is always false.
    """
    ours, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    by_tls = Credentials.of(ca_file=ours.certificate)
    renamed = Credentials.of(ca_file=ours.certificate, server_name="other.example")
    sound, expired = ours.issue("sound"), ours.issue("expired", lasts=-HOUR)
    async with secured(sound) as address:
        clear = await line(address, NO_CREDENTIALS)
        of_another = await line(address, Credentials.of(ca_file=stranger.certificate))
        other_name = await line(address, renamed)
    async with secured(expired) as address:
        too_late = await line(address, by_tls)
    async with secured(sound, client_ca=ours.certificate) as address:
        uncertified = await line(address, by_tls)
    assert "give --tls-ca-file" in clear
    for told in (of_another, other_name, too_late, uncertified):
        assert "--tls-ca-file is the authority of its certificate" in told
    assert all(
        "something listens at" in told and "halogen up" not in told
        for told in (clear, of_another, other_name, too_late, uncertified)
    )
    assert ["CERTIFICATE_VERIFY_FAILED" in told for told in (of_another, too_late)] == [True, True]


async def test_who_waits_for_a_gateway_is_told_what_the_transport_says(tmp_path: Path) -> None:
    """Not only that the time is over.

    Fault injection: turns red when `connect` asks for no last words.
    """
    ours, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    async with secured(ours.issue("sound")) as address:
        gateway = AskedGateway(address, PATIENCE_S, Credentials.of(ca_file=stranger.certificate))
        async with ControlClient(gateway.endpoint) as control:
            with pytest.raises(
                Unavailable, match=r"nobody answers at .* within 0\.2 s: .*CERTIFICATE_VERIFY"
            ):
                await control.connect(gateway.patience_s)


async def unconnected(address: str) -> str:
    """What a command ends with that waits for a gateway first, and calls it in the clear."""
    gateway = AskedGateway(address, PATIENCE_S)
    with pytest.raises(CommandError) as refused, explaining(gateway):
        async with ControlClient(gateway.endpoint) as control:
            await control.connect(gateway.patience_s)
    return str(refused.value)


async def test_a_gateway_that_hangs_is_not_taken_for_one_that_wants_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped takes connections, by its kernel, and says nothing; one that is called by TLS hangs up.

    Fault injection: turns red when `explaining` does not look for SILENT, or `connect` always, or never, says it.
    """
    monkeypatch.setattr("services.cli.control_client._LAST_WORDS_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        told = await unconnected(f"127.0.0.1:{stopped.getsockname()[1]}")
    assert "it hangs, is stopped, or has too much to do" in told
    assert "tls" not in told
    async with secured(Authority(tmp_path).issue("sound")) as address:
        assert "give --tls-ca-file" in await unconnected(address)


def test_where_nobody_listens_a_gateway_is_to_be_started() -> None:
    """With the address that was asked, on one line."""
    result = CliRunner().invoke(app, ["status", "--address", "127.0.0.1:1"])
    assert isinstance(result.exception, CommandError)
    assert "no gateway answers; start one with: halogen up" in str(result.exception)
    assert "127.0.0.1:1" in str(result.exception)
