"""A file on its way into a cache, which outlives whoever fills it.

It keeps no book of what it holds: what is found in it later counts only if its digest is right, whatever a crash has
left on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

from services.common.file_lock import LockKind, try_lock


class PartialFile(NamedTuple):
    """The file, open and held, for `size_bytes` bytes."""

    path: Path
    descriptor: int
    size_bytes: int

    @classmethod
    def open(cls, path: Path, size_bytes: int) -> Self:
        """Makes it, or takes over what another has left; the caller alone has its turn."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try_lock(descriptor, LockKind.ALONE)
        return cls(path, descriptor, size_bytes)

    @property
    def needed_bytes(self) -> int:
        """What `allocate` is yet to take."""
        return max(0, self.size_bytes - os.fstat(self.descriptor).st_size)

    def allocate(self) -> None:
        """Takes the room for all of it, so that a full disk shows itself before the first byte comes.

        Raises:
            OSError: There is not enough.
        """
        if self.needed_bytes:
            os.posix_fallocate(self.descriptor, 0, self.size_bytes)

    def has_data(self, begin: int, end: int) -> bool:
        """Whether anything was ever written between these offsets."""
        try:
            return os.lseek(self.descriptor, begin, os.SEEK_DATA) < end
        except OSError:
            return False  # nothing from there on

    def read(self, begin: int, end: int) -> bytes:
        return os.pread(self.descriptor, end - begin, begin)

    def write(self, begin: int, data: bytes | memoryview) -> None:
        """Raises OSError where the disk says no."""
        with memoryview(data) as view:
            done_bytes = 0
            while done_bytes < len(view):
                done_bytes += os.pwrite(self.descriptor, view[done_bytes:], begin + done_bytes)

    def finish(self) -> None:
        """Forces all of it to the disk and makes it immutable."""
        os.fchmod(self.descriptor, 0o444)
        os.fsync(self.descriptor)

    def discard(self) -> None:
        """Leaves nothing of it, unless it has been given another name by now."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def close(self) -> None:
        """Leaves it, under whatever name it has by now, unless there is nothing in it."""
        if os.fstat(self.descriptor).st_size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)
