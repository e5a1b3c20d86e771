"""Writes a v2 weight file as a stream: every byte is digested on its way and none is kept.

A piece is digested while it is written, and the disk gets to work on what was written while the next is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.digest import BlockDigester, Buffer
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import UNDIVIDED, Storage, TensorEntry, TensorSpec
from services.common.checkpoint.quantisation import check_finite, scale_names

Progress = Callable[[int, int], None]  # done bytes, total bytes

_ZEROS: Final = bytes(1 << 20)
_WRITEBACK_BYTES: Final = 32 << 20  # of which the disk is told at a time


def write_weights(
    path: Path,
    specs: Iterable[TensorSpec],
    architecture: Architecture,
    pieces_of: Callable[[TensorEntry], Iterable[Buffer]],
    progress: Progress = lambda _done, _total: None,
    *,
    storage: Storage = UNDIVIDED,
) -> Header:
    """Writes the tensors in the order given; the file is on disk when this returns.

    The header goes in last, so that a torn file has none. After a failure what is left has no header either.

    Args:
        path: A file that does not exist yet.
        specs: The tensors, members of a fusion group next to each other.
        architecture: The decoder that they make.
        pieces_of: A tensor's bytes, in pieces of whole elements.
        progress: Told after every piece.
        storage: How the tensors are meant to be divided.

    Raises:
        ValueError: No reader would trust such a file, the pieces are not as long as the tensor, or a scale is
            not a finite number.
        OSError: The disk says no.
    """
    header = Header.lay_out(specs, architecture, storage)
    with path.open("xb", buffering=0) as file, ThreadPoolExecutor(1) as digesting:
        file.seek(header.data_offset)
        stream = _DataStream(file, header, progress, digesting)
        for entry in header.layout.entries:
            stream.write_tensor(entry, pieces_of(entry))
        header = header.with_digests(stream.finish())
        os.fsync(file.fileno())
        os.pwrite(file.fileno(), header.encode(), 0)
        os.fsync(file.fileno())
    return header


class _DataStream:
    """The data region, written from its start to its end."""

    def __init__(self, file: BinaryIO, header: Header, progress: Progress, digesting: Executor) -> None:
        self._file = file
        self._header = header
        self._progress = progress
        self._digesting = digesting
        self._digester = BlockDigester()
        self._position = self._handed_over = header.data_offset
        self._scales = scale_names(header.layout.entries)

    def write_tensor(self, entry: TensorEntry, pieces: Iterable[Buffer]) -> None:
        self._pad_to(entry.offset)
        for piece in pieces:
            if entry.name in self._scales:
                check_finite(piece, entry)
            self._write(piece)
            self._progress(self._position - self._header.data_offset, self._header.data_bytes)
        if self._position != entry.end:
            raise ValueError(
                f"tensor {entry.name} came with {self._position - entry.offset} bytes, not {entry.nbytes}"
            )

    def finish(self) -> tuple[bytes, ...]:
        self._pad_to(self._header.file_bytes)
        self._progress(self._header.data_bytes, self._header.data_bytes)
        return self._digester.finish()

    def _pad_to(self, offset: int) -> None:
        while self._position < offset:
            self._write(_ZEROS[: offset - self._position])

    def _write(self, piece: Buffer) -> None:
        view = memoryview(piece).cast("B")
        digested = self._digesting.submit(self._digester.update, view)
        self._position += len(view)
        while view:
            view = view[self._file.write(view) :]
        digested.result()
        if self._position - self._handed_over >= _WRITEBACK_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        """Has the disk begin with what was written, so that little is left for the sync in the end.

        Dirty pages are no longer wanted in memory, says the advice: Linux starts to write them back at once, and
        keeps those that are being written.
        """
        length = self._position - self._handed_over
        os.posix_fadvise(self._file.fileno(), self._handed_over, length, os.POSIX_FADV_DONTNEED)
        self._handed_over = self._position
