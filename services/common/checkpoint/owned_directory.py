"""Directories that belong to a living process: held by a lock that the kernel drops when the owner dies.

What a killed owner leaves behind is thereby known for a leftover, whatever became of its pid or container.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

_NO_LOCKS: Final = frozenset({errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


class OwnedDirectory(NamedTuple):
    """A directory of our own and the descriptor whose lock says so."""

    path: Path
    lock: int

    @classmethod
    def create(cls, parent: Path, prefix: str) -> Self:
        """Makes a fresh directory ``{prefix}{random}`` in `parent` and locks it.

        Where the file system has no directory locks (NFS), it goes unlocked, and no sweep touches it.
        """
        while True:
            path = parent / f"{prefix}{secrets.token_hex(8)}"
            path.mkdir()
            with contextlib.suppress(FileNotFoundError, BlockingIOError):  # a sweep was faster: once more
                path.chmod(0o755)  # whatever the umask: engines may run as another user
                return cls(path, _open_locked(path, needed=False))

    def remove(self) -> None:
        """Deletes it with all that is in it; no error if it is gone."""
        try:
            shutil.rmtree(self.path, ignore_errors=True)
        finally:  # a signal that asks to end may cut it short, once
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)


def _open_locked(path: Path, *, needed: bool) -> int:
    """A descriptor that holds the directory; unless `needed`, one that holds nothing where there are no locks.

    Raises:
        BlockingIOError: Somebody else holds it.
        FileNotFoundError: It is gone, or another has its name by now.
        OSError: The file system has no locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(errno.ENOENT, "another directory has the name")
    except OSError as failure:
        if needed or failure.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


@contextlib.contextmanager
def owned_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A fresh directory for the scope, removed at its end unless it was renamed away."""
    directory = OwnedDirectory.create(parent, prefix)
    try:
        yield directory.path
    finally:
        directory.remove()


def sweep(parent: Path, prefix: str, but: Path | None = None) -> tuple[Path, ...]:
    """Removes what dead owners left in `parent`, except for `but`; returns what it removed."""
    swept = []
    for path in sorted(set(parent.glob(f"{prefix}*")) - {but}):
        with contextlib.suppress(OSError):  # alive, not a directory, or already swept
            OwnedDirectory(path, _open_locked(path, needed=True)).remove()
            swept.append(path)
    return tuple(swept)
