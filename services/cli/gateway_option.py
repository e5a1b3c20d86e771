"""The options of every command that asks a gateway: which one, and what is shown to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import asked_gateway
from services.cli.asked_gateway import AskedGateway
from services.cli.compound_option import compound
from services.cli.console import CommandError
from services.cli.options import AddressOption, HomeOption
from services.common.rpc.credentials import Credentials

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="HALOGEN_TOKEN_FILE",
        help="File with the token that is shown to the gateway, where that asks for one.",
    ),
]


def _credentials(*, token_file: TokenFileOption = None) -> Credentials:
    try:
        return Credentials.of(token_file=token_file)
    except ValueError as fault:
        raise CommandError(str(fault)) from None


credentials_option = compound("credentials", _credentials)


@credentials_option
def _gateway(
    *, credentials: Credentials, address: AddressOption = None, home: HomeOption = None
) -> AskedGateway:
    return asked_gateway.choose(address, home, credentials)


gateway_option = compound("gateway", _gateway)
