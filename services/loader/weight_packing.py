"""One weight file from the store into the file derived of it, on the cache's disk: every block read once, and verified."""

from __future__ import annotations

import functools
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import structlog

from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.checkpoint.packed_file import PackedFile
from services.common.checkpoint.partial_file import PartialFile
from services.common.errors import Cancelled
from services.loader.pack_sink import PackSink
from services.loader.reading import Reading

log = structlog.get_logger(component="checkpoint")


class WeightPacking(NamedTuple):
    """The file at `path` that `header`, verified already, describes, and what is made of it.

    Attributes:
        partial: Room for all of it, zeros.
    """

    path: Path
    header: Header
    file: PackedFile
    partial: PartialFile

    def run(self, reading: Reading, progress: Callable[[int], None], stop: threading.Event) -> None:
        """Fills the file, through the page cache; that it is on the disk is for whoever gives it its name.

        Args:
            reading: How to read, and how fast.
            progress: Told the length of every block that was read.
            stop: Ends the work early.

        Raises:
            CorruptData: A block does not match its digest.
            Cancelled: `stop` was set.
        """
        started = time.monotonic()
        with (
            mmap.mmap(self.partial.descriptor, self.partial.size_bytes) as mapped,
            memoryview(mapped) as memory,
        ):
            progress(self.header.data_offset)
            reading.reader(self.path, self.header).read_into(PackSink(self.file, memory), progress, stop)
            header = self._digested(memory, reading, stop)
            memory[: header.data_offset] = header.encode()
        log.info(
            "checkpoint_derived",
            size_bytes=header.file_bytes,
            seconds=round(time.monotonic() - started, 3),
            source=self.header.identity,
            identity=header.identity,
            layout=str(header.derived and header.derived.layout),
        )

    def _digested(self, memory: memoryview, reading: Reading, stop: threading.Event) -> Header:
        """The header with the digests of the data as they now are."""
        header = self.file.header
        digest = functools.partial(_digest, memory, header.data_offset, reading, stop)
        with ThreadPoolExecutor(reading.threads, "halogen-digest") as pool:
            return header.with_digests(tuple(pool.map(digest, split_blocks(header.data_bytes))))


def _digest(
    memory: memoryview, data_offset: int, reading: Reading, stop: threading.Event, block: tuple[int, int]
) -> bytes:
    begin, end = block
    reading.pace.before(end - begin, stop)
    if stop.is_set():
        raise Cancelled("the derivation was called off")
    with memory[data_offset + begin : data_offset + end] as data:
        return block_digest(data)
