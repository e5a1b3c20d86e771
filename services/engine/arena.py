"""The memory behind the block pool: one arena of bytes per device."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Final

import numpy as np
import torch

from services.engine.block_pool import BlockPool
from services.engine.span_set import Span

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arena:
    """One stretch of private memory that costs pages only where it was written, and since it was last discarded.

    Args:
        total_bytes: Its size to begin with.
        most_bytes: What it may grow to; as it begins when not given. Addresses alone are taken for it.
        min_free_ratio: As `BlockPool` has it.

    Attributes:
        pool: Which bytes are lent to whom.
        most_bytes: As above.
    """

    def __init__(self, total_bytes: int, most_bytes: int = 0, min_free_ratio: float = 0) -> None:
        self.pool = BlockPool(total_bytes, min_free_ratio)
        self.most_bytes = max(total_bytes, most_bytes)
        memory = mmap.mmap(-1, self.most_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._bytes.device

    @property
    def untouched_bytes(self) -> int:
        """What its use will take of memory that it does not take yet: the pages that are not there."""
        total_bytes = self.pool.total_bytes
        resident = np.zeros(-(-total_bytes // mmap.PAGESIZE), np.uint8)
        if _libc.mincore(self._bytes.data_ptr(), total_bytes, resident.ctypes.data) != 0:
            return total_bytes
        return max(0, total_bytes - int((resident & 1).sum()) * mmap.PAGESIZE)

    def blocks(self, block_bytes: int) -> torch.Tensor:
        """The arena as a generation sees it, as large as it may become: bytes, [blocks, block_bytes]."""
        whole = self.most_bytes // block_bytes
        return self._bytes[: whole * block_bytes].view(whole, block_bytes)

    def discard(self, span: Span) -> None:
        """Gives the memory of these bytes back to the host, as far as they fill pages; takes milliseconds, by any thread.

        Args:
            span: Nobody uses them, or will while this runs; they hold anything afterwards.

        Raises:
            OSError: The kernel does not.
        """
        start = -(-span.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = span.end // mmap.PAGESIZE * mmap.PAGESIZE
        if (
            start < end
            and _libc.madvise(self._bytes.data_ptr() + start, end - start, mmap.MADV_DONTNEED) != 0
        ):
            raise OSError(ctypes.get_errno(), "madvise: the arena's memory cannot be given back")
