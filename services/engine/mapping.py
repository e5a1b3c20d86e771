"""A file in shared memory, mapped read-only as bytes that tensors can be views of, without a copy."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from services.common.errors import Unavailable

_FAILED: Final = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ: Final = 22  # Linux 5.14
_PIECE_BYTES: Final = 4 << 20  # whole huge pages

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_file(path: Path) -> torch.Tensor:
    """The file's bytes, [size] of uint8, shared with everybody who maps it; a write is a SIGSEGV.

    It is unmapped when the last tensor over it is gone. Until then a shared lock shows that it is in use: its
    loader leaves it where it is when room is short, because to unlink it would free nothing. Python's own mmap will
    not do: torch warns of every buffer that it cannot write to.

    Raises:
        Unavailable: The file is not there (any more), or is empty.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise Unavailable(f"prepared weights cannot be opened: {failure.strerror}", retry_after_s=1) from None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise Unavailable("prepared weights are empty; ask the loader again", retry_after_s=1)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the mapping keeps it
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _FAILED:
        raise Unavailable(f"weights cannot be mapped: {os.strerror(ctypes.get_errno())}", retry_after_s=1)
    buffer = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(buffer, _libc.munmap, address, size)
    return torch.frombuffer(buffer, dtype=torch.uint8)


def populate(mapped: torch.Tensor, stop: threading.Event, rest: Callable[[], None] = lambda: None) -> None:
    """Makes every page of a mapping resident, so that the first step does not fault its way through it.

    Slow for large files and holds no lock: call it in a thread. Older kernels fault as they go.

    Args:
        mapped: What `map_file` gave, or the beginning of it.
        stop: Ends it early, between two pieces.
        rest: Called after every piece.
    """
    for begin in range(0, mapped.numel(), _PIECE_BYTES):
        if stop.is_set():
            return
        piece = mapped[begin : begin + _PIECE_BYTES]
        _libc.madvise(piece.data_ptr(), piece.numel(), _MADV_POPULATE_READ)
        rest()
