"""Reads a weight file's data as fast as the disk gives it, every block checked by the thread that read it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.errors import Cancelled
from services.loader.sink import Sink

_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


def open_direct(path: Path) -> int:
    """A descriptor that bypasses the page cache; raises OSError where the file system has no such thing."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)


class BlockReader:
    """Reads one file's blocks with several threads; preadv and blake3 both let the others run.

    Args:
        path: The weight file.
        header: Its header, already verified.
        threads: How many blocks are read at a time.
        opener: Opens for direct reads.
    """

    def __init__(
        self, path: Path, header: Header, threads: int, opener: Callable[[Path], int] = open_direct
    ) -> None:
        self._path = path
        self._header = header
        self._threads = threads
        self._opener = opener
        self._failed = threading.Event()
        self.is_direct = False

    def read_into(self, sink: Sink, progress: Callable[[int], None], stop: threading.Event) -> None:
        """Reads and verifies every block.

        Args:
            sink: Takes the file, at the file's own offsets.
            progress: Told the length of every verified block, from the thread that read it.
            stop: Ends the work early.

        Raises:
            CorruptData: A block does not match its digest; names the file and the block.
            Cancelled: `stop` was set.
        """
        blocks = iter(
            list(enumerate(split_blocks(self._header.data_bytes)))
        )  # shared: each block is taken once

        def work() -> None:
            for index, (begin, end) in blocks:
                if stop.is_set() or self._failed.is_set():
                    return
                self._read_block(index, self._header.data_offset + begin, end - begin, sink)
                progress(end - begin)

        with self._opened(), ThreadPoolExecutor(self._threads, "halogen-read") as pool:
            for future in [pool.submit(self._guarded, work) for _ in range(self._threads)]:
                future.result()
        if stop.is_set():
            raise Cancelled("the read was called off")

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self._failed.set()  # the other threads need not read on
            raise

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        with contextlib.ExitStack() as scope:
            self._buffered = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            scope.callback(os.close, self._buffered)
            try:
                self._direct = self._opener(self._path)
            except OSError:
                self._direct, self.is_direct = self._buffered, False
            else:
                scope.callback(os.close, self._direct)
                self.is_direct = True
            yield

    def _read_block(self, index: int, offset: int, length: int, sink: Sink) -> None:
        with sink.window(offset, offset + length) as block:
            self._fill(block, offset, index)
            if block_digest(block) != self._header.digests[index]:
                raise self._header.block_mismatch(index, "does not match its digest")

    def _fill(self, block: memoryview, offset: int, index: int) -> None:
        done_bytes = 0
        while done_bytes < len(block):
            with block[done_bytes:] as rest:
                count = self._read(rest, offset + done_bytes)
            if count == 0:
                raise self._header.block_mismatch(index, "is cut off: the file ends inside it")
            done_bytes += count

    def _read(self, window: memoryview, offset: int) -> int:
        """One read, direct if the system takes it so: after a short read the rest may not be aligned."""
        if self.is_direct:
            try:
                return os.preadv(self._direct, [window], offset)
            except OSError as failure:
                if failure.errno not in _NOT_DIRECT:
                    raise
        return os.preadv(self._buffered, [window], offset)
