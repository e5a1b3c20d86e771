"""A directory of weights that the loaders of one user share on one host.

``NAME`` is finished, verified and immutable; ``.NAME.writing`` is on its way there; ``.NAME.turn`` says whose turn it
is to give or take the name. Every loader holds the directory, and every file that it counts on, by a shared lock.
The kernel drops a lock with its holder, so what nobody holds may go, whoever left it; the last one out removes all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Self

from services.common.file_lock import LockKind, has_name, try_lock
from services.loader.turn import turn, turn_if_free
from services.loader.vouched_files import VouchedFiles


class SharedDirectory:
    """The directory, held for as long as it is open.

    Args:
        path: Of the directory.
        descriptor: Of the same, locked.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.vouched = VouchedFiles()
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> Self:
        """Makes the directory if it is not there, and holds it; waits while a last one removes it.

        Raises:
            OSError: It is another user's, its parent is not there, or the file system has no locks.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            with contextlib.suppress(FileNotFoundError):
                return cls(path, _open_held(path))

    @property
    def is_there(self) -> bool:
        """Whether nobody has removed it by hand."""
        return has_name(self._descriptor, self.path)

    def close(self) -> None:
        """Lets go of it; the last one takes it away with all that is in it."""
        if try_lock(self._descriptor, LockKind.ALONE) and self.is_there:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)

    def turn(self, name: str) -> AbstractAsyncContextManager[None]:
        """Waits for the turn to make `name`, as `turn.turn` says."""
        return turn(self._turn_path(name))

    def create(self, name: str) -> UnfinishedFile:
        """A file on its way to `name`, in place of what a killed loader had begun; needs the turn."""
        path = self._unfinished(name)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        unfinished = UnfinishedFile(self, name, path, descriptor)
        with contextlib.ExitStack() as undo:
            undo.callback(unfinished.discard)
            try_lock(descriptor, LockKind.SHARED)
            undo.pop_all()
        return unfinished

    def find(self, name: str) -> HeldFile | None:
        """The finished file of that name, held, if there is one."""
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            if try_lock(descriptor, LockKind.SHARED) and has_name(descriptor, self.path / name):
                undo.pop_all()
                return HeldFile(self, name, descriptor)
        return None

    def has(self, name: str) -> bool:
        """Whether the file of that name is there or on its way, as far as can be told without the turn."""
        return (self.path / name).exists() or self._unfinished(name).exists()

    def _unfinished(self, name: str) -> Path:
        return self.path / f".{name}.writing"

    def finished(self) -> list[str]:
        """Names of finished files, those let go of longest ago first."""
        found: list[tuple[int, str]] = []
        for path in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith("."):
                    found.append((path.stat().st_mtime_ns, path.name))
        return [name for _, name in sorted(found)]

    def evict(self) -> str | None:
        """Takes the name of one finished file that nobody holds, and returns it; None where there is none."""
        return next((name for name in self.finished() if self.remove_unheld(name)), None)

    def sweep(self) -> None:
        """Removes what killed loaders had begun."""
        for path in list(self.path.glob(".*.writing")):
            with turn_if_free(self._turn_path(path.name[1:].removesuffix(".writing"))) as mine:
                if mine:
                    path.unlink(missing_ok=True)

    def remove_unheld(self, name: str) -> bool:
        """Takes the name of a finished file unless somebody holds it, or its turn; tells whether it did."""
        with contextlib.suppress(FileNotFoundError), turn_if_free(self._turn_path(name)) as mine:
            if mine and _unlink_unheld(self.path / name):
                self.vouched.forget(name)
                return True
        return False

    def _turn_path(self, name: str) -> Path:
        return self.path / f".{name}.turn"


class HeldFile:
    """A finished file whose name stays while this is open."""

    def __init__(self, directory: SharedDirectory, name: str, descriptor: int) -> None:
        self._directory = directory
        self._name = name
        self._descriptor: int | None = descriptor
        self.path = directory.path / name
        self.size_bytes = os.fstat(descriptor).st_size

    def vouch(self) -> None:
        """All of it has just been verified."""
        if self._descriptor is not None:
            self._directory.vouched.add(self._name, self._descriptor)

    def is_vouched(self) -> bool:
        """Whether this process has verified it, and nobody has touched it since."""
        return self._descriptor is not None and self._directory.vouched.has(self._name, self._descriptor)

    def let_go(self) -> None:
        """From now on it may go when room is short."""
        if self._descriptor is None:
            return
        try:
            self._touch(self._descriptor)
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _touch(self, descriptor: int) -> None:
        """It was held until now."""
        was_vouched = self.is_vouched()
        now_ns = time.time_ns()  # finer than the file system's own clock
        os.utime(descriptor, ns=(now_ns, now_ns))
        if was_vouched:
            self.vouch()

    def release(self) -> None:
        """Takes its name, unless others hold it; whoever maps it keeps its pages."""
        try:
            self.let_go()
        finally:
            self._directory.remove_unheld(self._name)


class UnfinishedFile:
    """A file being written; ends by one call of `finish` or `discard`."""

    def __init__(self, directory: SharedDirectory, name: str, path: Path, descriptor: int) -> None:
        self._directory = directory
        self._name = name
        self._path = path
        self.descriptor = descriptor

    def finish(self) -> HeldFile:
        """Makes it immutable for everybody, whatever the umask, and gives it its name; all of it was verified.

        Raises:
            OSError: It has no name, and is yet to be discarded.
        """
        os.fchmod(self.descriptor, 0o444)
        held = HeldFile(self._directory, self._name, self.descriptor)
        self._path.rename(held.path)
        held.vouch()
        return held

    def discard(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        finally:
            os.close(self.descriptor)


def _open_held(path: Path) -> int:
    """Raises FileNotFoundError when the directory was removed meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path.name} belongs to another user")
        os.fchmod(descriptor, 0o755)  # engines may run as another user
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not has_name(descriptor, path):
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unlink_unheld(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        unheld = try_lock(descriptor, LockKind.ALONE)
        if unheld:
            path.unlink()
        return unheld
    finally:
        os.close(descriptor)
