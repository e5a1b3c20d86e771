"""Ports are chosen once: two systems that start at the same moment get different ones."""

from __future__ import annotations

import socket
import subprocess
import sys

from services.cli.ports import Ports

HOLDER = """
import sys
from services.cli.ports import Ports
with Ports() as ports:
    print(ports.choose(int(sys.argv[1])), flush=True)
    input()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_taken_port_gives_way_to_a_free_one() -> None:
    """The usual port when it is free, another when it is not."""
    with socket.socket() as holder, Ports() as ports:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert taken != ports.choose(taken)
    with Ports() as ports:
        assert taken == ports.choose(taken)


def test_a_chosen_port_is_not_chosen_again_before_it_is_bound() -> None:
    """Neither by the same launcher nor by another, until its scope ends. Fault injection: `_hold` binds nothing."""
    usual = free_port()
    with Ports() as mine, Ports() as other:
        first = [mine.choose(usual), mine.choose(usual), other.choose(usual)]
        assert (usual, 3) == (first[0], len(set(first)))
    with Ports() as later:
        assert usual == later.choose(usual)


def test_a_killed_launcher_holds_nothing() -> None:
    """The kernel lets go of what it held."""
    usual = free_port()
    command = [sys.executable, "-c", HOLDER, str(usual)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        assert usual == int(launcher.stdout.readline())
        with Ports() as ports:
            assert usual != ports.choose(usual)
        launcher.kill()
    with Ports() as ports:
        assert usual == ports.choose(usual)
