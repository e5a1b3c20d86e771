"""Weights as files in a directory that loaders share: on a tmpfs, in /dev/shm, or on a disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.common.memory_guard import Bound
from services.loader.mounts import mount_of, read_mounts
from services.loader.place import Holding, PlaceKind
from services.loader.shared_directory import HeldFile, SharedDirectory, UnfinishedFile

_REMEDY: Final = (
    "mount a tmpfs there (mount -t tmpfs -o huge=always tmpfs DIR), or give another --weights-dir"
)


class FileSlot:
    """A file under a temporary name, all its blocks allocated."""

    has_room = True

    def __init__(self, kind: PlaceKind, file: UnfinishedFile, size_bytes: int) -> None:
        self.kind = kind
        self.size_bytes = size_bytes
        self.descriptor = file.descriptor
        self._file = file

    def allocate(self, allocate: Callable[[int, int, int], None]) -> None:
        """Takes the room now: a write into a hole would later die of SIGBUS instead of saying ENOSPC."""
        try:
            _check_size(self.descriptor, self.size_bytes)
            allocate(self.descriptor, 0, self.size_bytes)
        except BaseException:
            self.discard()
            raise

    def publish(self) -> Holding:
        return file_holding(self.kind, self._file.finish())

    def discard(self) -> None:
        self._file.discard()


class DirectoryPlace:
    """A shared directory, made when first needed, held while this loader lives.

    Args:
        kind: TMPFS and DEV_SHM must lie in memory; FILE may lie anywhere.
        directory: Its parent exists, except for FILE, where it is made.
        allocate: posix_fallocate, or a test's.
    """

    def __init__(
        self,
        kind: PlaceKind,
        directory: Path,
        allocate: Callable[[int, int, int], None] = os.posix_fallocate,
    ) -> None:
        self.kind = kind
        self.directory = directory
        self._allocate = allocate
        self._shared: SharedDirectory | None = None

    def reserve(self, name: str, size_bytes: int) -> FileSlot:
        """Room for a file, as `Place.reserve` says."""
        shared = self.shared(make=True)
        slot = FileSlot(self.kind, shared.create(name), size_bytes)
        slot.allocate(self._allocate)
        return slot

    def shared(self, *, make: bool) -> SharedDirectory:
        """The directory, as `Place.shared` says."""
        if self._shared is None or not self._shared.is_there:
            self.close()
            if not make and not self.directory.exists():
                raise FileNotFoundError(errno.ENOENT, "nothing there")
            self._check_parent()
            self._shared = SharedDirectory.open(self.directory)
        return self._shared

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _check_parent(self) -> None:
        parent = self.directory.parent
        if self.kind is PlaceKind.FILE:
            parent.mkdir(parents=True, exist_ok=True)
        elif not parent.is_dir():
            raise OSError(errno.ENOENT, f"{parent}: no such directory; {_REMEDY}")
        elif not mount_of(parent, read_mounts()).is_memory:
            raise OSError(errno.ENODEV, f"{parent} is not on a tmpfs; {_REMEDY}")


def file_holding(kind: PlaceKind, held: HeldFile) -> Holding:
    """What a place gives for a finished file in its directory."""
    return Holding(
        kind=kind,
        mapped_path=str(held.path),
        size_bytes=held.size_bytes,
        let_go=held.let_go,
        release=held.release,
        vouch=held.vouch,
        is_vouched=lambda: kind.is_memory and held.is_vouched(),
    )


def _check_size(descriptor: int, need_bytes: int) -> None:
    """Raises OSError, with the arithmetic, unless the file system is large enough; a tmpfs may have no size."""
    found = os.fstatvfs(descriptor)
    if found.f_blocks:
        held_bytes = (found.f_blocks - found.f_bavail) * found.f_frsize
        bound = Bound("its file system", found.f_blocks * found.f_frsize, held_bytes)
        if refusal := bound.refusal(need_bytes, ratio=1):
            raise OSError(errno.ENOSPC, refusal)
