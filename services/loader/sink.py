"""Where verified blocks go: into mapped memory without a copy, or through a buffer into a file."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from services.common.checkpoint.digest import BLOCK_BYTES
from services.loader.shared_mapping import SharedMapping


class Sink(Protocol):
    """Takes a file's bytes by windows, from several threads at once."""

    def window(self, begin: int, end: int) -> AbstractContextManager[memoryview]:
        """Writable memory for the file's bytes from `begin` to `end`, at most a block.

        They count as written when the scope ends without an error; the memory is not to be kept.
        """
        ...


class MappedSink:
    """The file's own pages."""

    def __init__(self, mapping: SharedMapping) -> None:
        self._mapping = mapping

    @contextlib.contextmanager
    def window(self, begin: int, end: int) -> Iterator[memoryview]:
        """A part of the mapping itself, as `Sink.window` says."""
        with self._mapping.view[begin:end] as window:
            yield window


class ScratchSink:
    """One aligned buffer per thread, for bytes that are to be verified and not kept."""

    def __init__(self) -> None:
        self._local = threading.local()

    @contextlib.contextmanager
    def window(self, begin: int, end: int) -> Iterator[memoryview]:
        """The thread's buffer, as `Sink.window` says."""
        with memoryview(self._buffer())[: end - begin] as window:
            yield window

    def _buffer(self) -> mmap.mmap:
        if not hasattr(self._local, "buffer"):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # page-aligned, as direct reads ask
            self._local.buffer = mmap.mmap(-1, BLOCK_BYTES, flags=flags)
        buffer: mmap.mmap = self._local.buffer
        return buffer


class FileSink:
    """Each window, once it has been filled and found right, is written to a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._scratch = ScratchSink()

    @contextlib.contextmanager
    def window(self, begin: int, end: int) -> Iterator[memoryview]:
        """A buffer that is written out at the scope's end, as `Sink.window` says."""
        with self._scratch.window(begin, end) as window:
            yield window
            done_bytes = 0
            while done_bytes < len(window):
                done_bytes += os.pwrite(self._descriptor, window[done_bytes:], begin + done_bytes)
