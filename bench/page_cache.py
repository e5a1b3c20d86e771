"""Takes files out of the page cache, so that a read is a read of the disk, and makes sure that they are out."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)


def drop(paths: Iterable[Path]) -> None:
    """Drops the files' pages.

    Raises:
        RuntimeError: Some are still there: another process maps them, or the file system keeps them.
    """
    paths = tuple(paths)
    for path in paths:
        _advise(path)
    for path in paths:
        if kept := resident_pages(path):
            raise RuntimeError(
                f"{kept} pages of {path.name} stay in the page cache; nothing cold can be measured"
            )


def resident_pages(path: Path) -> int:
    """How many of the file's pages are in the page cache."""
    size_bytes = path.stat().st_size
    seen = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size_bytes, mmap.MAP_PRIVATE) as mapped:
        start = ctypes.addressof(anchor := ctypes.c_char.from_buffer(mapped))
        failed = _libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), seen)
        del anchor  # a mapping with a view over it cannot be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(bytes(seen).translate(_LOWEST_BIT))


_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))


def _advise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what is dirty would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
