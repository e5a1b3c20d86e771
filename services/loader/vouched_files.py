"""Files of a directory that this process has verified, known again for as long as nobody has touched them."""

from __future__ import annotations

import os
from typing import NamedTuple, Self


class _Stamp(NamedTuple):
    """A file's state as the kernel tells it; no call sets the time of the last change."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


class VouchedFiles:
    """Names of files, each with what the kernel said of the file when it was verified."""

    def __init__(self) -> None:
        self._stamps: dict[str, _Stamp] = {}

    def add(self, name: str, descriptor: int) -> None:
        """The open file of that name has just been verified."""
        self._stamps[name] = _Stamp.of(descriptor)

    def has(self, name: str, descriptor: int) -> bool:
        """Whether the open file of that name is one that was added, as it was then."""
        return self._stamps.get(name) == _Stamp.of(descriptor)

    def forget(self, name: str) -> None:
        self._stamps.pop(name, None)
