"""Whether a local system is running from a home, and where it is reached."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from services.cli.console import CommandError
from services.cli.home import Home


class Addresses(BaseModel):
    """host:port of each process, and of the HTTP side (probes, metrics) of those that have one."""

    model_config = ConfigDict(frozen=True)

    etcd: str
    etcd_peer: str  # etcd wants one for members, even without any
    loader: str
    engine: str
    scheduler: str
    gateway: str
    http: Mapping[str, str] = {}


class RunState(BaseModel):
    """run/state.json: written by the launcher while it runs."""

    model_config = ConfigDict(frozen=True)

    pid: int
    addresses: Addresses
    store: str  # directory or URL
    logs: Path


@contextlib.contextmanager
def hold(home: Home) -> Iterator[None]:
    """Holds the home for one launcher; the kernel lets go when the launcher dies, however it dies.

    Raises:
        CommandError: Another launcher holds it.
    """
    with home.lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"halogen already runs from {home.root}; stop it with: halogen down") from None
        try:
            yield
        finally:
            home.state_file.unlink(missing_ok=True)


def save(home: Home, addresses: Addresses) -> None:
    """Tells other commands where this launcher's system is."""
    state = RunState(pid=os.getpid(), addresses=addresses, store=home.loaders_store, logs=home.logs)
    fresh = home.state_file.with_suffix(".new")
    fresh.write_text(state.model_dump_json(indent=2) + "\n")
    fresh.rename(home.state_file)


def running(home: Home) -> RunState | None:
    """The state of the launcher that holds the home; None when none does, whatever an old file says."""
    if not home.lock_file.exists() or not _is_held(home):
        return None
    try:
        return RunState.model_validate_json(home.state_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def stop(home: Home, *, patience_s: float) -> bool:
    """Asks the launcher to end and waits for it; tells whether one was running.

    Raises:
        CommandError: It does not end within `patience_s` seconds, not even by force.
    """
    state = running(home)
    if state is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(state.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(watched, number)
                if _ended(watched, patience_s):
                    return True
        finally:
            os.close(watched)
        raise CommandError(f"process {state.pid} does not end; look at {state.logs}")
    return True


def _is_held(home: Home) -> bool:
    with home.lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _ended(watched: int, patience_s: float) -> bool:
    return bool(select.select([watched], [], [], patience_s)[0])
