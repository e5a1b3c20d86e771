"""Ports for a local system: the usual ones, or free ones where they are taken."""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType
from typing import Self


class Ports:
    """Chooses ports on loopback that no other launcher chooses while the scope lasts.

    A process binds its port some time after it was chosen, and again when it is started anew. So each choice is
    held by a socket in the kernel's abstract namespace, which ends where the ports' own does, at the container or
    the host, and which goes with the launcher, however that ends.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def choose(self, usual: int) -> int:
        """`usual` if nobody has it, else a free port."""
        port = usual
        while not (self._hold(port) and _can_bind(port)):
            port = _free()
        return port

    def _hold(self, port: int) -> bool:
        """Whether the port is ours to choose; then it is held."""
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0halogen/port/{port}")
        except OSError:
            claim.close()
            return False
        self._held.callback(claim.close)
        return True


def _can_bind(port: int) -> bool:
    with contextlib.suppress(OSError):
        return _bind(port) == port
    return False


def _free() -> int:
    return _bind(0)


def _bind(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        bound: int = probe.getsockname()[1]
        return bound
