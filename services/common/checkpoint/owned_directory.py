"""Directories that belong to a living process: held by a lock that the kernel drops when the owner dies.

What a killed owner leaves behind is thereby known for a leftover, whatever became of its pid or container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self


class OwnedDirectory(NamedTuple):
    """A directory of our own and the descriptor whose lock says so."""

    path: Path
    lock: int

    @classmethod
    def create(cls, parent: Path, prefix: str) -> Self:
        """Makes a fresh directory ``{prefix}{random}`` in `parent` and locks it."""
        while True:
            path = parent / f"{prefix}{secrets.token_hex(8)}"
            path.mkdir(mode=0o755)
            if (lock := _lock(path)) is not None:
                return cls(path, lock)

    def remove(self) -> None:
        """Deletes it with all that is in it; no error if it is gone."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the directory, or None where somebody else has it, or has swept it away."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


@contextlib.contextmanager
def owned_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A fresh directory for the scope, removed at its end unless it was renamed away."""
    directory = OwnedDirectory.create(parent, prefix)
    try:
        yield directory.path
    finally:
        directory.remove()


def sweep(parent: Path, prefix: str) -> tuple[Path, ...]:
    """Removes what dead owners left in `parent`; returns what it removed."""
    swept = []
    for path in sorted(parent.glob(f"{prefix}*")) if parent.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and (lock := _lock(path)) is not None:
            OwnedDirectory(path, lock).remove()
            swept.append(path)
    return tuple(swept)
