"""Why a gateway could not be asked: nobody is there, somebody who was not spoken to as he wants to be, or one who hangs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from services.cli.asked_gateway import AskedGateway
from services.cli.console import CommandError
from services.cli.control_client import SILENT
from services.common.errors import Unavailable
from services.common.rpc.address import Address
from services.common.rpc.status import UNREACHABLE

_LOOK_S: Final = 1.0
_HANGS: Final = (
    "it hangs, is stopped, or has too much to do: look at its log and start it anew, "
    "or give the --address of another"
)
_IN_THE_CLEAR: Final = (
    "if it is called by TLS, give --tls-ca-file, and --tls-cert-file where it asks for a certificate of ours"
)
_BY_TLS: Final = (
    "see that --tls-ca-file is the authority of its certificate, that this has not expired and names the host of "
    "--address (or else what --tls-server-name says), that it is not called in the clear, and give --tls-cert-file where "
    "it asks for a certificate of ours"
)


@contextlib.contextmanager
def explaining(gateway: AskedGateway) -> Iterator[None]:
    """The scope of a command that asks the gateway.

    Raises:
        CommandError: No connection came about, in place of Unavailable (UNREACHABLE): with what the transport says, and
            what to do.
    """
    try:
        yield
    except Unavailable as failure:
        if failure.reason != UNREACHABLE:  # somebody said so
            raise
        if not _listens(gateway.address):
            raise CommandError(nobody(failure)) from failure
        by_tls = _BY_TLS if gateway.credentials.tls else _IN_THE_CLEAR
        remedy = _HANGS if SILENT in failure.metadata else by_tls
        raise CommandError(
            f"something listens at {gateway.address}, but the call came to nothing ({failure.message}); {remedy}"
        ) from failure


def nobody(failure: Unavailable) -> str:
    """The line where no gateway is."""
    return f"no gateway answers; start one with: halogen up, or give its --address ({failure.message})"


def _listens(address: str) -> bool:
    """Whether anything takes connections there."""
    try:
        host, port = Address.parse(address)
        with socket.create_connection((host.strip("[]"), port), timeout=_LOOK_S):
            return True
    except (OSError, ValueError):
        return False
