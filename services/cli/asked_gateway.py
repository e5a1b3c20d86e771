"""The gateway that a command asks: the one named, else the local system's, else the usual one."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from services.cli import home, run_state
from services.cli.console import CommandError
from services.cli.control_client import START_S
from services.cli.home import Home
from services.cli.run_state import RunState
from services.common.rpc.credentials import NO_CREDENTIALS, Credentials
from services.common.rpc.endpoint import Endpoint

USUAL_ADDRESS: Final = "127.0.0.1:50051"
_RUNNING_S: Final = 3.0


class AskedGateway(NamedTuple):
    """The one that was chosen.

    Attributes:
        address: host:port.
        patience_s: How long it may take until it answers: longer while a launcher is starting it.
        credentials: Shown to it.
        home: The folder of the local system that was asked for, if one was.
    """

    address: str
    patience_s: float
    credentials: Credentials = NO_CREDENTIALS
    home: Path | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, self.credentials)


def choose(
    address: str | None, asked: Path | None, credentials: Credentials = NO_CREDENTIALS
) -> AskedGateway:
    """The gateway at `address`, else of the local system in the home `asked` for, or found from here.

    Raises:
        CommandError: There is a home and its system does not run: nobody else's is asked instead.
    """
    if address:
        return AskedGateway(address, _RUNNING_S, credentials, asked)
    place = Home.find(asked)
    if state := run_state.running(place):
        return AskedGateway(state.addresses.gateway, START_S, credentials, asked)
    if place.root.is_dir() or place.root != Path.cwd() / home.NAME:
        raise _stopped(place, "--address, that of a gateway elsewhere")
    return AskedGateway(USUAL_ADDRESS, _RUNNING_S, credentials, asked)


def local_store(asked: Path | None) -> str:
    """The store of the local system's loader.

    Raises:
        CommandError: No local system runs.
    """
    state: RunState | None = run_state.running(place := Home.find(asked))
    if state is None:
        raise _stopped(place, "--address and --store, the store that its loaders read")
    return state.store


def _stopped(place: Home, otherwise: str) -> CommandError:
    return CommandError(
        f"no local system runs from {place.root}; start it with: halogen up --home {place.root}, or give {otherwise}"
    )
