"""The least that lending blocks can cost in Python: one list of free blocks of one size."""

from __future__ import annotations

import collections


class FreeList:
    """Knows no pages, no second block size and no neighbours."""

    def __init__(self, blocks: int) -> None:
        self._free = collections.deque(range(blocks))

    def reserve(self, _block_bytes: int, blocks: int) -> FreeBlocks:
        return FreeBlocks(self._free, [self._free.popleft() for _ in range(blocks)])


class FreeBlocks:
    """Blocks of a `FreeList`, with a `Reservation`'s names."""

    def __init__(self, free: collections.deque[int], blocks: list[int]) -> None:
        self._free = free
        self._blocks = blocks
        self._taken = 0

    def grow(self, blocks: int) -> None:
        self._blocks += [self._free.popleft() for _ in range(blocks)]

    def take(self) -> int:
        self._taken += 1
        return self._blocks[self._taken - 1]

    def close(self) -> None:
        self._free.extend(self._blocks)
