"""A file's pages mapped, for writing or for reading, and taken before anybody needs them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from services.loader.smaps import Smaps, parse_smaps

_MADV_POPULATE_READ: Final = 22  # linux/mman.h, since 5.14; Python 3.11 does not name them
_MADV_POPULATE_WRITE: Final = 23
_STEP_BYTES: Final = 4 << 20  # between two looks whether to stop

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = _libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class SharedMapping:
    """MAP_SHARED over all of `descriptor`; a scope.

    Direct reads are bounded by the faults of the buffer's pages: huge pages where the host gives them, and all of
    them touched by one thread, which is faster than faulting from many.
    """

    def __init__(self, descriptor: int, size_bytes: int, *, writable: bool = True) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._writable = writable
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._map = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, protection)
        self.view = memoryview(self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.view.release()
        self._map.close()

    def populate(
        self,
        end: int | None = None,
        stop: threading.Event | None = None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes all pages up to `end`, huge ones where possible; other threads run meanwhile.

        Args:
            end: In bytes; the whole file's when None.
            stop: Ends it early.
            rest: Called after every 4 MiB.

        Raises:
            OSError: There is not enough memory.
        """
        self._advise_huge()
        end = self._size_bytes if end is None else min(end, self._size_bytes)
        for begin in range(0, end, _STEP_BYTES):
            if stop is not None and stop.is_set():
                return
            self._populate(begin, min(_STEP_BYTES, end - begin))
            rest()

    def _populate(self, begin: int, size_bytes: int) -> None:
        """By ctypes: Python's own madvise keeps all other threads waiting."""
        advice = _MADV_POPULATE_WRITE if self._writable else _MADV_POPULATE_READ
        if _libc.madvise(self._address() + begin, size_bytes, advice) == 0:
            return
        if ctypes.get_errno() != errno.EINVAL:
            raise OSError(errno.ENOMEM, "not enough memory for all pages")
        if self._writable:  # a kernel without it
            os.posix_fallocate(self._descriptor, begin, size_bytes)

    def _advise_huge(self) -> None:
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return  # a kernel without huge pages: the log says so from what smaps shows

    def make_read_only(self) -> None:
        """From here on a write, even a stray one of this process, is SIGSEGV.

        The mapping stays for as long as its file is held, so that the kernel's books (smaps: Shared, Pss) show
        an engine's pages as what they are, shared with the loader.
        """
        if _libc.mprotect(self._address(), self._size_bytes, mmap.PROT_READ) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def smaps(self) -> Smaps:
        """What the kernel says of this mapping."""
        with Path("/proc/self/smaps").open(encoding="utf-8") as lines:
            return parse_smaps(lines, self._address())

    def _address(self) -> int:
        return int(
            np.frombuffer(self._map, np.uint8).ctypes.data
        )  # no view is kept: the map could not be closed
