"""Reads a weight file's data as fast as the disk gives it, every block checked by the thread that read it."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.errors import Cancelled
from services.loader.pace import FULL_SPEED, Pace
from services.loader.sink import Sink
from services.loader.weight_file import Opener, ReadMode, WeightFile, open_direct

LONGEST_WAIT_S: Final = (
    0.05  # of the next block, for a moment that nobody else wants; so 80 MB/s are read at least
)

_Block = tuple[int, tuple[int, int]]  # its number, and its begin and end in the data


class BlockReader:
    """Reads one file's blocks with several threads; preadv and blake3 both let the others run.

    Beside live traffic the threads take only what time the cores have left. So that no load starves where they have
    none, the caller's own thread, an ordinary one, reads a block whenever those got none done for `LONGEST_WAIT_S`.

    Args:
        path: The weight file.
        header: Its header, already verified.
        threads: How many blocks are read at a time.
        opener: Opens for direct reads.
        asked: The one mode that is wanted; None for the best that works.
        pace: Asked before every block.
        longest_wait_s: As above.

    Attributes:
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
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._path = path
        self._header = header
        self._threads = threads
        self._opener, self._asked = opener, asked
        self._pace = pace
        self._longest_wait_s = longest_wait_s
        self._done = 0  # blocks; counted without a lock, for whether it moves is all that is asked
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
        blocks = every if only is None else [every[index] for index in only]
        probed_at = self._header.data_offset
        with WeightFile.open(self._path, probed_at, self._asked, self._opener) as self._file:
            self.mode, self.refusal = self._file.mode, self._file.refusal
            wanted, read = iter(blocks), functools.partial(self._read, sink, progress, stop)
            with ThreadPoolExecutor(self._threads, "halogen-read") as pool:
                work = functools.partial(self._work, wanted, read)
                workers = [pool.submit(self._guarded, work) for _ in range(self._threads)]
                self._guarded(functools.partial(self._relieve, workers, wanted, read))
                for worker in workers:
                    worker.result()
        if stop.is_set():
            raise Cancelled("the read was called off")

    def _work(self, blocks: Iterator[_Block], read: Callable[[_Block], bool]) -> None:
        """Takes blocks that no other thread has taken, until there are none."""
        for block in blocks:
            self._pace.stand_back(self._header.data_bytes)
            if not read(block):
                return

    def _relieve(
        self,
        workers: Sequence[Future[None]],
        blocks: Iterator[_Block],
        read: Callable[[_Block], bool],
    ) -> None:
        """Waits for the workers, and reads a block in their place whenever they stand back for too long."""
        seen = self._done
        while wait(workers, self._longest_wait_s).not_done:
            if self._pace.stands_back and self._done == seen:
                for block in itertools.islice(blocks, 1):
                    read(block)
            seen = self._done

    def _read(
        self, sink: Sink, progress: Callable[[int], None], stop: threading.Event, block: _Block
    ) -> bool:
        """Whether it did: nothing more is read once the work is called off or has failed."""
        index, (begin, end) = block
        self._pace.before(end - begin, stop)
        if stop.is_set() or self._failed.is_set():
            return False
        self._read_block(index, self._header.data_offset + begin, end - begin, sink)
        self._done += 1
        progress(end - begin)
        return True

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
