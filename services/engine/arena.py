"""The memory behind the block pool: one arena of bytes per device."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Final

import numpy as np
import torch

from services.engine.block_pool import BlockPool

_libc: Final = ctypes.CDLL(None)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Arena:
    """One stretch of private memory, zero until first written, that costs pages only where it was written.

    Attributes:
        pool: Which bytes are lent to whom.
    """

    def __init__(self, total_bytes: int) -> None:
        self.pool = BlockPool(total_bytes)
        memory = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._bytes.device

    @property
    def untouched_bytes(self) -> int:
        """What its use will take of memory that it does not take yet: the pages that were never written."""
        total_bytes = self.pool.total_bytes
        resident = np.zeros(-(-total_bytes // mmap.PAGESIZE), np.uint8)
        if _libc.mincore(self._bytes.data_ptr(), total_bytes, resident.ctypes.data) != 0:
            return total_bytes
        return max(0, total_bytes - int((resident & 1).sum()) * mmap.PAGESIZE)

    def blocks(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The arena as a generation sees it: an array [blocks, *shape] of `dtype` over the same bytes."""
        block_bytes = dtype.itemsize * torch.Size(shape).numel()
        whole = self.pool.total_bytes // block_bytes
        return self._bytes[: whole * block_bytes].view(dtype).view(whole, *shape)
