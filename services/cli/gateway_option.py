"""The options of every command that asks a gateway: which one, and what is shown to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from services.cli import asked_gateway
from services.cli.asked_gateway import AskedGateway
from services.cli.compound_option import compound
from services.cli.console import CommandError
from services.cli.options import AddressOption, HomeOption
from services.cli.unreached import explaining
from services.common.rpc.credentials import Credentials

R = TypeVar("R")

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="HALOGEN_TOKEN_FILE",
        help="File with the token that is shown to the gateway, where that asks for one.",
    ),
]

CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca-file",
        envvar="HALOGEN_TLS_CA_FILE",
        help="CA certificates (PEM) of the gateway; it is called by TLS.",
    ),
]
CertFileOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert-file",
        envvar="HALOGEN_TLS_CERT_FILE",
        help="Our certificate (PEM), for a gateway that asks for one.",
    ),
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--tls-key-file", envvar="HALOGEN_TLS_KEY_FILE", help="Its key (PEM).")
]
ServerNameOption = Annotated[
    str,
    typer.Option(
        "--tls-server-name",
        envvar="HALOGEN_TLS_SERVER_NAME",
        help="The name in the gateway's certificate; the host in its address when left out.",
    ),
]


def _credentials(
    *,
    token_file: TokenFileOption = None,
    tls_ca_file: CaFileOption = None,
    tls_cert_file: CertFileOption = None,
    tls_key_file: KeyFileOption = None,
    tls_server_name: ServerNameOption = "",
) -> Credentials:
    try:
        return Credentials.of(
            token_file=token_file,
            ca_file=tls_ca_file,
            cert_file=tls_cert_file,
            key_file=tls_key_file,
            server_name=tls_server_name,
        )
    except ValueError as fault:
        raise CommandError(str(fault)) from None


credentials_option = compound("credentials", _credentials)


@credentials_option
def _gateway(
    *, credentials: Credentials, address: AddressOption = None, home: HomeOption = None
) -> AskedGateway:
    return asked_gateway.choose(address, home, credentials)


_gateway_option = compound("gateway", _gateway)


def gateway_option(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the options of a gateway that it asks; where that cannot be asked, its last line says why."""

    @functools.wraps(command)
    def asking(*, gateway: AskedGateway, **given: Any) -> R:
        with explaining(gateway):
            return command(gateway=gateway, **given)

    return _gateway_option(asking)
