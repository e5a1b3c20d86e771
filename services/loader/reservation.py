"""Room for one file, taken and touched, before a byte of it is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

from services.loader.place import Holding, Place, PlaceKind, Slot
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import FileSink, MappedSink, Sink


class Reservation:
    """A slot and the sink that leads into it; ends by one call of `publish` or `discard`.

    Attributes:
        huge_pages: Whether the file's pages are huge.
    """

    def __init__(self, slot: Slot, sink: Sink, mapping: SharedMapping | None = None) -> None:
        self._slot = slot
        self._mapping = mapping
        self.sink = sink
        self.huge_pages = mapping is not None and mapping.smaps().is_huge

    @classmethod
    def take(cls, place: Place, name: str, size_bytes: int) -> Self:
        """Reserves in `place` and, in memory, faults every page in.

        Raises:
            OSError: The place has no room, or is none.
        """
        slot = place.reserve(name, size_bytes)
        try:
            if not place.kind.is_memory:
                return cls(slot, FileSink(slot.descriptor))
            with contextlib.ExitStack() as scope:
                mapping = scope.enter_context(SharedMapping(slot.descriptor, size_bytes))
                mapping.populate()
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
    def mapped(self) -> Iterator[memoryview]:
        """All of the file's bytes, writable; on a disk they reach it through the page cache."""
        with contextlib.ExitStack() as scope:
            mapping = self._mapping or scope.enter_context(
                SharedMapping(self._slot.descriptor, self._slot.size_bytes)
            )
            with mapping.view[:] as view:
                yield view

    def publish(self) -> Holding:
        """Makes the file immutable; in memory it stays mapped here, read-only, until it is released."""
        holding = self._slot.publish()
        if self._mapping is None:
            return holding
        self._mapping.make_read_only()
        return holding.closing(self._mapping.close)

    def discard(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
        self._slot.discard()
