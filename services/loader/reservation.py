"""Room for one file, taken before a byte of it is read; its pages come then, or while it is filled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from services.common.rest import Rest
from services.loader.place import Holding, Place, PlaceKind, Slot
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import FileSink, MappedSink, Sink

_FIRST_BYTES: Final = 4 << 20  # enough to see what pages the place gives


class Reservation:
    """A slot and the sink that leads into it; ends by one call of `publish` or `discard`, whatever comes of that.

    Attributes:
        huge_pages: Whether the file's pages, as far as there were any when they were last taken, are huge.
    """

    def __init__(self, slot: Slot, sink: Sink, mapping: SharedMapping | None = None) -> None:
        self._slot = slot
        self._mapping = mapping
        self.sink = sink
        self.huge_pages = mapping is not None and mapping.smaps().is_huge

    @classmethod
    def take(cls, place: Place, name: str, size_bytes: int) -> Self:
        """Reserves in `place`; in memory, it takes the first pages, or all where only that takes the room.

        Raises:
            OSError: The place has no room, or is none.
        """
        slot = place.reserve(name, size_bytes)
        try:
            if not place.kind.is_memory:
                return cls(slot, FileSink(slot.descriptor))
            with contextlib.ExitStack() as scope:
                mapping = scope.enter_context(SharedMapping(slot.descriptor, size_bytes))
                mapping.populate(_FIRST_BYTES if slot.has_room else None)
                reservation = cls(slot, MappedSink(mapping), mapping)
                scope.pop_all()
                return reservation
        except BaseException:
            slot.discard()
            raise

    @property
    def kind(self) -> PlaceKind:
        return self._slot.kind

    @contextlib.contextmanager
    def populating(self, is_busy: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Takes the rest of the pages while the scope reads into them: the disk need not wait for that.

        Args:
            is_busy: Whether it is to rest between pieces, as somebody is served.
        """
        if self._mapping is None:
            yield
            return
        ended = threading.Event()
        with ThreadPoolExecutor(1, "halogen-populate") as pool:
            ahead = pool.submit(self._populate, self._mapping, ended, is_busy)
            try:
                yield
            finally:
                ended.set()
        ahead.result()

    def _populate(self, mapping: SharedMapping, ended: threading.Event, is_busy: Callable[[], bool]) -> None:
        mapping.populate(stop=ended, rest=Rest(is_busy, ended).take)
        self.huge_pages = mapping.smaps().is_huge

    @contextlib.contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """All of the file's bytes, writable; on a disk they reach it through the page cache."""
        with contextlib.ExitStack() as scope:
            mapping = self._mapping or scope.enter_context(
                SharedMapping(self._slot.descriptor, self._slot.size_bytes)
            )
            with mapping.view[:] as view:
                yield view

    def publish(self) -> Holding:
        """Makes the file immutable; in memory it stays mapped here, read-only, until it is released.

        Raises:
            OSError: It cannot; nothing is left of it.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self.discard)
            if self._mapping is not None:
                self._mapping.make_read_only()
            holding = self._slot.publish()  # last: what has a name is there to stay
            undo.pop_all()
        return holding.closing(self._mapping.close) if self._mapping else holding

    def discard(self) -> None:
        try:
            if self._mapping is not None:
                self._mapping.close()
        finally:
            self._slot.discard()
