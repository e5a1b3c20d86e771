"""A file's pages mapped for writing, every one of them there before the first read goes into it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from services.loader.smaps import Smaps, parse_smaps

_MADV_POPULATE_WRITE: Final = 23  # linux/mman.h, since 5.14; Python 3.11 does not name it


class SharedMapping:
    """MAP_SHARED over all of `descriptor`; a scope.

    Direct reads are bounded by the faults of the buffer's pages: huge pages where the host gives them, and
    all of them touched beforehand in one thread, which is faster than faulting from many.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._map = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED)
        self.view = memoryview(self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.view.release()
        self._map.close()

    def populate(self) -> None:
        """Takes all pages, huge ones where possible.

        Raises:
            OSError: There is not enough memory.
        """
        self._advise_huge()
        try:
            self._map.madvise(_MADV_POPULATE_WRITE)
        except OSError as failure:
            if failure.errno != errno.EINVAL:
                raise OSError(errno.ENOMEM, "not enough memory for all pages") from failure
            os.posix_fallocate(self._descriptor, 0, self._size_bytes)

    def _advise_huge(self) -> None:
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return  # a kernel without huge pages: the log says so from what smaps shows

    def smaps(self) -> Smaps:
        """What the kernel says of this mapping."""
        anchor = ctypes.c_char.from_buffer(self._map)
        address = ctypes.addressof(anchor)
        del anchor  # an exported buffer would keep the map from closing
        return parse_smaps(Path("/proc/self/smaps").read_text(encoding="utf-8"), address)
