"""Room for one file, taken and touched, before a byte of it is read."""

from __future__ import annotations

import contextlib
from typing import Self

from services.loader.place import Holding, Place, PlaceKind, Slot
from services.loader.shared_mapping import SharedMapping
from services.loader.sink import FileSink, MappedSink, Sink


class Reservation:
    """A slot and the sink that leads into it; ends by one call of `publish` or `discard`.

    Attributes:
        huge_pages: Whether the file's pages are huge.
    """

    def __init__(self, slot: Slot, sink: Sink, scope: contextlib.ExitStack, huge_pages: bool) -> None:
        self._slot = slot
        self._scope = scope
        self.sink = sink
        self.huge_pages = huge_pages

    @classmethod
    def take(cls, place: Place, name: str, size_bytes: int) -> Self:
        """Reserves in `place` and, in memory, faults every page in.

        Raises:
            OSError: The place has no room, or is none.
        """
        slot = place.reserve(name, size_bytes)
        try:
            if not place.kind.is_memory:
                return cls(slot, FileSink(slot.descriptor), contextlib.ExitStack(), huge_pages=False)
            with contextlib.ExitStack() as scope:
                mapping = scope.enter_context(SharedMapping(slot.descriptor, size_bytes))
                mapping.populate()
                huge_pages = mapping.smaps().is_huge
                return cls(slot, MappedSink(mapping), scope.pop_all(), huge_pages)
        except BaseException:
            slot.discard()
            raise

    @property
    def kind(self) -> PlaceKind:
        return self._slot.kind

    def publish(self) -> Holding:
        self._scope.close()
        return self._slot.publish()

    def discard(self) -> None:
        self._scope.close()
        self._slot.discard()
