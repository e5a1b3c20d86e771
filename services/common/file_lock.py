"""Locks on open files, which the kernel drops with the last descriptor or mapping of whoever held them."""

from __future__ import annotations

import enum
import fcntl
import os
from pathlib import Path


class LockKind(enum.IntEnum):
    """How a file is held."""

    ALONE = fcntl.LOCK_EX
    SHARED = fcntl.LOCK_SH


def try_lock(descriptor: int, kind: LockKind) -> bool:
    """Locks the open file unless somebody else's lock is in the way; what it held before is then lost.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_name(descriptor: int, path: Path) -> bool:
    """Whether `path` is still the name of the open file."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def is_held(path: Path) -> bool:
    """Whether somebody has a lock on the file, which is there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return not try_lock(descriptor, LockKind.ALONE)
    finally:
        os.close(descriptor)
