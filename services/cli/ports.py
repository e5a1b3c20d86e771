"""Ports for a local system: the usual ones, or free ones where they are taken."""

from __future__ import annotations

import contextlib
import socket


def choose(usual: int) -> int:
    """`usual` if it can be bound on loopback now, else a free port."""
    with contextlib.suppress(OSError):
        return _bind(usual)
    return _bind(0)


def _bind(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        bound: int = probe.getsockname()[1]
        return bound
