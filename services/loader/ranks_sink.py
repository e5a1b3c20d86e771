"""Blocks of a whole weight file, dealt out to the files of its ranks once each has been found right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from services.common.checkpoint.rank_file import Piece, RankFile
from services.loader.sink import ScratchSink


class RankTarget(NamedTuple):
    """A rank's file and its memory, all of it and writable."""

    file: RankFile
    memory: memoryview


class RanksSink:
    """Takes a whole file by windows, from several threads at once; no two of them write the same byte."""

    def __init__(self, targets: Sequence[RankTarget]) -> None:
        self._targets = tuple(targets)
        self._scratch = ScratchSink()

    @contextlib.contextmanager
    def window(self, begin: int, end: int) -> Iterator[memoryview]:
        """A buffer of which each rank gets its pieces at the scope's end, as `Sink.window` says."""
        with self._scratch.window(begin, end) as window:
            yield window
            for target in self._targets:
                for piece in target.file.pieces(begin, end):
                    _copy(window, begin, target.memory, piece)


def _copy(window: memoryview, begin: int, memory: memoryview, piece: Piece) -> None:
    """Copies a piece of the window, whose first byte is at `begin` of the whole file."""
    at = piece.source - begin
    if piece.runs == 1:
        memory[piece.target : piece.target + piece.run_bytes] = window[at : at + piece.run_bytes]
        return
    shape = piece.runs, piece.run_bytes
    strides = piece.stride_bytes, 1
    source = np.lib.stride_tricks.as_strided(
        np.frombuffer(window, np.uint8)[at:], shape, strides, writeable=False
    )
    length = piece.runs * piece.run_bytes
    np.frombuffer(memory, np.uint8, length, piece.target).reshape(shape)[:] = source
