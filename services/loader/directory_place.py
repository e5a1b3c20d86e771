"""Weights as files in a directory of this loader's own: on a tmpfs, in /dev/shm, or on a disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from services.common.checkpoint.owned_directory import OwnedDirectory
from services.loader.memory import available_bytes
from services.loader.mounts import mount_of, read_mounts
from services.loader.place import DIRECTORY_PREFIX, Holding, PlaceKind


class FileSlot:
    """A file under a temporary name, all its blocks allocated."""

    def __init__(self, kind: PlaceKind, directory: Path, name: str, size_bytes: int) -> None:
        self.kind = kind
        self.size_bytes = size_bytes
        self._final = directory / name
        self._temporary = directory / f".{name}.writing"
        self.descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def allocate(self, allocate: Callable[[int, int, int], None]) -> None:
        """Takes the room now: a write into a hole would later die of SIGBUS instead of saying ENOSPC."""
        try:
            allocate(self.descriptor, 0, self.size_bytes)
        except OSError:
            self.discard()
            raise

    def publish(self) -> Holding:
        os.fchmod(self.descriptor, 0o444)
        self._temporary.rename(self._final)
        os.close(self.descriptor)
        path = self._final
        return Holding(
            kind=self.kind,
            mapped_path=str(path),
            size_bytes=self.size_bytes,
            release=lambda: path.unlink(missing_ok=True),
        )

    def discard(self) -> None:
        self._temporary.unlink(missing_ok=True)
        os.close(self.descriptor)


class DirectoryPlace:
    """A directory below `parent`, made when first needed, owned while this loader lives.

    Args:
        kind: TMPFS and DEV_SHM must lie in memory; FILE may lie anywhere.
        parent: An existing directory, except for FILE, where it is made.
        allocate: posix_fallocate, or a test's.
        available: Bytes of memory that may be taken.
    """

    def __init__(
        self,
        kind: PlaceKind,
        parent: Path,
        allocate: Callable[[int, int, int], None] = os.posix_fallocate,
        available: Callable[[], int] = available_bytes,
    ) -> None:
        self.kind = kind
        self.parent = parent
        self._allocate = allocate
        self._available = available
        self._owned: OwnedDirectory | None = None

    def reserve(self, name: str, size_bytes: int) -> FileSlot:
        """Room for a file, as `Place.reserve` says."""
        if self.kind.is_memory:
            self._check_memory(size_bytes)
        slot = FileSlot(self.kind, self._directory(), name, size_bytes)
        slot.allocate(self._allocate)
        return slot

    def close(self) -> None:
        if self._owned is not None:
            self._owned.remove()
            self._owned = None

    def _check_memory(self, size_bytes: int) -> None:
        if not self.parent.is_dir():
            raise OSError(errno.ENOENT, "no such directory")
        if not mount_of(self.parent, read_mounts()).is_memory:
            raise OSError(errno.ENODEV, "not on a tmpfs")
        check_available(size_bytes, self._available())

    def _directory(self) -> Path:
        if self._owned is None:
            if self.kind is PlaceKind.FILE:
                self.parent.mkdir(parents=True, exist_ok=True)
            self._owned = OwnedDirectory.create(self.parent, DIRECTORY_PREFIX)
        return self._owned.path


def check_available(size_bytes: int, available: int) -> None:
    """Raises OSError unless so much memory can be had."""
    if size_bytes > available:
        raise OSError(errno.ENOMEM, f"{size_bytes} bytes asked for, {available} bytes of memory available")
