"""Processes that end with the one that started them. As a script: PARENT COMMAND ..., which becomes the command.

A script, and not work between fork and exec: libraries have handlers of their own run in a child that is forked, and
those of gRPC, if it is in use, can kill it there. It needs nothing but the standard library, so it starts in no time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """Has the kernel send SIGTERM to this process when its parent dies, even by SIGKILL.

    Args:
        parent: Who started it; if that one is dead already, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def with_parent(command: Sequence[str]) -> tuple[str, ...]:
    """How to start a command that shall end with this process."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def _become(parent: int, command: Sequence[str]) -> None:
    end_with_parent(parent)
    try:
        os.execvp(command[0], list(command))  # noqa: S606  # it is what we are started for
    except OSError as failure:
        sys.exit(f"{command[0]}: {failure.strerror}")


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
