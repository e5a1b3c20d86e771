"""What a file was when it was verified, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self


class FileStamp(NamedTuple):
    """A file's state; no call sets the time of the last change."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, file: int | Path) -> Self:
        """Of an open file, or of what a path names; raises OSError where it names nothing."""
        found = os.fstat(file) if isinstance(file, int) else file.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    def is_of(self, path: Path) -> bool:
        """Whether the path names the same file, and nobody has touched it since."""
        try:
            return self == FileStamp.of(path)
        except OSError:
            return False
