"""Reads a weight file's data as fast as the disk gives it, every block checked by the thread that read it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.errors import Cancelled
from services.loader.pace import FULL_SPEED, Pace
from services.loader.sink import Sink
from services.loader.weight_file import Opener, ReadMode, WeightFile, open_direct

_Block = tuple[int, tuple[int, int]]  # its number, and its begin and end in the data


class BlockReader:
    """Reads one file's blocks with several threads; preadv and blake3 both let the others run.

    Args:
        path: The weight file.
        header: Its header, already verified.
        threads: How many blocks are read at a time.
        opener: Opens for direct reads.
        asked: The one mode that is wanted; None for the best that works.
        pace: Asked before every block.

    Attributes:
        path: The file.
        mode: How the last `read_into` read.
        refusal: Why it did not read directly; empty when it did.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        threads: int,
        opener: Opener = open_direct,
        *,
        asked: ReadMode | None = None,
        pace: Pace = FULL_SPEED,
    ) -> None:
        self.path = path
        self._header = header
        self._threads = threads
        self._opener, self._asked = opener, asked
        self._pace = pace
        self._failed = threading.Event()
        self.mode, self.refusal = ReadMode.DIRECT, ""

    def read_into(
        self,
        sink: Sink,
        progress: Callable[[int], None],
        stop: threading.Event,
        *,
        only: Sequence[int] | None = None,
    ) -> None:
        """Reads and verifies the blocks.

        Args:
            sink: Takes the file, at the file's own offsets.
            progress: Told the length of every verified block, from the thread that read it.
            stop: Ends the work early.
            only: The blocks that are wanted; all of them when None.

        Raises:
            CorruptData: A block does not match its digest; names the file and the block.
            Cancelled: `stop` was set.
            PreconditionFailed: The mode that is asked for cannot be had.
        """
        every = list(enumerate(split_blocks(self._header.data_bytes)))
        wanted = iter(every if only is None else [every[index] for index in only])
        probed_at = self._header.data_offset
        with WeightFile.open(self.path, probed_at, self._asked, self._opener) as self._file:
            self.mode, self.refusal = self._file.mode, self._file.refusal
            work = functools.partial(self._work, wanted, sink, progress, stop)
            with ThreadPoolExecutor(self._threads, "halogen-read") as pool:
                for future in [pool.submit(self._guarded, work) for _ in range(self._threads)]:
                    future.result()
        if stop.is_set():
            raise Cancelled("the read was called off")

    def _work(
        self, blocks: Iterator[_Block], sink: Sink, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        """Takes blocks that no other thread has taken, until there are none."""
        for index, (begin, end) in blocks:
            self._pace.before(end - begin, stop)
            if stop.is_set() or self._failed.is_set():
                return
            self._read_block(index, self._header.data_offset + begin, end - begin, sink)
            progress(end - begin)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self._failed.set()  # the other threads need not read on
            raise

    def _read_block(self, index: int, offset: int, length: int, sink: Sink) -> None:
        with sink.window(offset, offset + length) as block:
            self._fill(block, offset, index)
            if block_digest(block) != self._header.digests[index]:
                raise self._header.block_mismatch(index, "does not match its digest")

    def _fill(self, block: memoryview, offset: int, index: int) -> None:
        done_bytes = 0
        while done_bytes < len(block):
            with block[done_bytes:] as rest:
                count = self._file.read(rest, offset + done_bytes)
            if count == 0:
                raise self._header.block_mismatch(index, "is cut off: the file ends inside it")
            done_bytes += count
