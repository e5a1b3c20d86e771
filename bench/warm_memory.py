"""Makes free memory the guest's own again.

A virtual machine may give free pages back to its host, and then pays for every page that it touches anew: seconds for
gigabytes, whoever touches them. That is no property of a loader, so memory is touched and freed before each one's turn.
"""

from __future__ import annotations

import mmap
from typing import Final

_HUGE_PAGE_BYTES: Final = 2 << 20


def warm(size_bytes: int) -> None:
    """Touches so many bytes of memory, on huge pages where there are any, and frees them."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    piece = b"\1" * _HUGE_PAGE_BYTES
    for begin in range(0, size_bytes - _HUGE_PAGE_BYTES + 1, _HUGE_PAGE_BYTES):
        memory[begin : begin + _HUGE_PAGE_BYTES] = piece
    memory.close()
