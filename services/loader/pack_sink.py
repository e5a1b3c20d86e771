"""Blocks of a whole weight file, put into the file derived of it once each has been found right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from services.common.checkpoint.packed_file import PackedFile
from services.loader.sink import ScratchSink


class PackSink:
    """Takes a whole file by windows, from several threads at once; no two of them write the same element.

    Args:
        file: What is made of it.
        memory: All of the derived file, writable, zeros.
    """

    def __init__(self, file: PackedFile, memory: memoryview) -> None:
        self._file = file
        self._memory = memory
        self._scratch = ScratchSink()

    @contextlib.contextmanager
    def window(self, begin: int, end: int) -> Iterator[memoryview]:
        """A buffer whose tensors are put in their places at the scope's end, as `Sink.window` says."""
        with self._scratch.window(begin, end) as window:
            yield window
            for move in self._file.moves_of(begin, end):
                move.put(window, begin, self._memory)
