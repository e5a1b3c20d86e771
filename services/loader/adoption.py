"""A finished file that was here before: believed once every block of it is verified, never before."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from services.common.checkpoint.header import Header
from services.common.checkpoint.verified_artifact import check_scales, decode_header
from services.common.errors import CorruptData, InvalidRequest
from services.loader.block_reader import BlockReader
from services.loader.place import Holding
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import ScratchSink


class Adopted(NamedTuple):
    """What came of it."""

    header: Header
    holding: Holding
    huge_pages: bool


class Adoption(NamedTuple):
    """A file, held, and what it should be.

    Attributes:
        check: Raises CorruptData for any header but the one that is wanted.
    """

    holding: Holding
    check: Callable[[Header], object]

    def run(self, threads: int, stop: threading.Event) -> Adopted:
        """Verifies the file, unless this process has and nobody has touched it since, and maps it.

        After any failure it lets go of it.

        Args:
            threads: How many blocks are verified at a time.
            stop: Ends the work early.

        Raises:
            CorruptData: It is not what it should be.
            Cancelled: `stop` was set.
        """
        try:
            header = self._read_header()
            if not self.holding.is_vouched():
                reader = BlockReader(Path(self.holding.mapped_path), header, threads)
                reader.read_into(ScratchSink(), _say_nothing, stop)
                self.holding.vouch()
            return self._map(header)
        except BaseException:
            self.holding.let_go()
            raise

    def _read_header(self) -> Header:
        with Path(self.holding.mapped_path).open("rb") as file:
            try:
                header = decode_header(file)
            except InvalidRequest as fault:
                raise CorruptData(fault.message) from None
            self.check(header)
            check_scales(file, header)
        if self.holding.size_bytes != header.file_bytes:
            raise CorruptData(
                "the weights in memory are not as long as their header says; they are read anew"
            )
        return header

    def _map(self, header: Header) -> Adopted:
        """In memory it stays mapped here, as `Reservation.publish` says."""
        if not self.holding.kind.is_memory:
            return Adopted(header, self.holding, huge_pages=False)
        descriptor = os.open(self.holding.mapped_path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.ExitStack() as undo:
            try:
                mapping = undo.enter_context(
                    SharedMapping(descriptor, self.holding.size_bytes, writable=False)
                )
            finally:
                os.close(descriptor)
            mapping.populate()
            adopted = Adopted(header, self.holding.closing(mapping.close), mapping.smaps().is_huge)
            undo.pop_all()
        return adopted


def check_layout(found: Header, expected: Header) -> None:
    """Raises CorruptData unless a header is, but for its digests, the one that would be made anew."""
    if len(found.digests) != len(expected.digests) or expected.with_digests(found.digests) != found:
        raise CorruptData("the weights there are of another layout, or of other weights; they are made anew")


def _say_nothing(_by_bytes: int) -> None:
    """Takes as long as it takes to read the memory: no progress to tell."""
