"""The I/O priority of a thread (man 2 ioprio_set); neither Python nor the C library has a function for it."""

from __future__ import annotations

import ctypes
import enum
import platform
from typing import Final

_NUMBERS: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30}  # of the system call
_WHO_PROCESS: Final = 1
_CLASS_SHIFT: Final = 13

_libc = ctypes.CDLL(None, use_errno=True)


class IoClass(enum.IntEnum):
    """What a thread's reads and writes are served after."""

    NORMAL = 0
    IDLE = 3  # everybody else's


def set_io_class(io_class: IoClass) -> bool:
    """Sets the calling thread's; whether the kernel took it."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return False
    priority = io_class << _CLASS_SHIFT
    return bool(_libc.syscall(number, _WHO_PROCESS, 0, priority) == 0)


def io_class() -> IoClass:
    """The calling thread's."""
    number = _NUMBERS[platform.machine()] + 1  # ioprio_get
    found = _libc.syscall(number, _WHO_PROCESS, 0) >> _CLASS_SHIFT
    return IoClass.IDLE if found == IoClass.IDLE else IoClass.NORMAL
