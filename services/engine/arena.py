"""The memory behind the block pool: one arena of bytes per device."""

from __future__ import annotations

import contextlib
import mmap

import torch

from services.engine.block_pool import BlockPool


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

    def blocks(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The arena as a generation sees it: an array [blocks, *shape] of `dtype` over the same bytes."""
        block_bytes = dtype.itemsize * torch.Size(shape).numel()
        whole = self.pool.total_bytes // block_bytes
        return self._bytes[: whole * block_bytes].view(dtype).view(whole, *shape)
