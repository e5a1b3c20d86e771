"""A finished file that was here before: believed once every block of it is verified, never before."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

from services.common.checkpoint.header import Header
from services.common.errors import CorruptData
from services.loader.block_reader import BlockReader
from services.loader.place import Holding
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import ScratchSink


class Adopted(NamedTuple):
    """What came of it."""

    holding: Holding
    huge_pages: bool


class Adoption(NamedTuple):
    """A file, held, that should be what `header`, verified already, describes."""

    header: Header
    holding: Holding

    def run(self, threads: int, stop: threading.Event) -> Adopted:
        """Verifies the file and maps it; after any failure lets go of it.

        Args:
            threads: How many blocks are verified at a time.
            stop: Ends the work early.

        Raises:
            CorruptData: It is not what the header describes.
            Cancelled: `stop` was set.
        """
        try:
            self._check_header()
            reader = BlockReader(Path(self.holding.mapped_path), self.header, threads)
            reader.read_into(ScratchSink(), _say_nothing, stop)
            return self._map()
        except BaseException:
            self.holding.let_go()
            raise

    def _check_header(self) -> None:
        encoded = self.header.encode()
        with Path(self.holding.mapped_path).open("rb") as file:
            same = self.holding.size_bytes == self.header.file_bytes and file.read(len(encoded)) == encoded
        if not same:
            raise CorruptData("the weights in memory are other weights; they are read anew")

    def _map(self) -> Adopted:
        """In memory it stays mapped here, as `Reservation.publish` says."""
        if not self.holding.kind.is_memory:
            return Adopted(self.holding, huge_pages=False)
        descriptor = os.open(self.holding.mapped_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapping = SharedMapping(descriptor, self.holding.size_bytes, writable=False)
        finally:
            os.close(descriptor)
        mapping.populate()
        return Adopted(self.holding.closing(mapping.close), mapping.smaps().is_huge)


def _say_nothing(_by_bytes: int) -> None:
    """Takes as long as it takes to read the memory: no progress to tell."""
