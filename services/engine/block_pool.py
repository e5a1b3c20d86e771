"""The arena's bytes, lent in blocks: who holds what, what is kept, and what is free. Pure bookkeeping, no memory in here."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

from services.engine.extent import extent_in
from services.engine.page import Page
from services.engine.reservation import Reservation
from services.engine.span_set import Run, Span, SpanSet


class BlockPool:
    """Lends blocks of one arena to generations whose blocks may differ in size.

    Block `i` of size `b` lies at bytes ``[i * b, (i + 1) * b)``, so that every generation sees the arena as an
    array of its own blocks. Any byte is free, withheld, in exactly one reservation, or in exactly one page. Pages that
    nobody uses count as room: they go, longest unused first, when a reservation needs their bytes.

    The lowest blocks that are free are handed out first, so that long sequences lie in few stretches, holes are filled
    before memory is touched that never was, and the arena's end is free as soon as it can be.

    Any thread may call; whoever asks and then acts on the answer holds `lock` meanwhile.

    Args:
        total_bytes: Size of the arena.
        min_free_ratio: The part of it that is left to requests that grow: new ones do not get it, and kept pages go
            before it is needed.

    Attributes:
        total_bytes: As above; changes with `extend` and `give_up`.
        lock: Held by every call.
        reclaimable_bytes: In pages that nobody uses.
    """

    def __init__(self, total_bytes: int, min_free_ratio: float = 0) -> None:
        self.total_bytes = total_bytes
        self.lock = threading.RLock()
        self.reclaimable_bytes = 0
        self._min_free_ratio = min_free_ratio
        self._reserved_bytes = 0
        self._in_use_bytes = 0
        self._free = SpanSet([Span(0, total_bytes)])
        self._room = SpanSet([Span(0, total_bytes)])  # what is free, and the pages that nobody uses
        self._withheld = SpanSet()
        self._held: set[Reservation] = set()
        self._in_use: set[Page] = set()
        self._unused: collections.OrderedDict[Page, None] = collections.OrderedDict()  # longest unused first

    @property
    def used_bytes(self) -> int:
        """Reserved, or in pages that somebody uses; each page once."""
        return self._reserved_bytes + self._in_use_bytes

    @property
    def free_bytes(self) -> int:
        return self._free.total_bytes

    @property
    def withheld_bytes(self) -> int:
        """Free, but lent to nobody for a moment."""
        return self._withheld.total_bytes

    @property
    def free_spans(self) -> tuple[Span, ...]:
        return self._free.spans

    @property
    def min_free_bytes(self) -> int:
        """Left to requests that grow."""
        return self.total_bytes - self.promisable_bytes

    @property
    def promisable_bytes(self) -> int:
        """The most that new requests may have together."""
        return self.promisable(self.total_bytes)

    def promisable(self, total_bytes: int) -> int:
        """The same of an arena of `total_bytes`."""
        return total_bytes - int(self._min_free_ratio * total_bytes)

    @property
    def extents(self) -> collections.Counter[int]:
        """In how many stretches the blocks of all reservations were handed out, by the largest extent in each."""
        with self.lock:
            runs = [run for reservation in self._held for run in reservation.runs]
        return collections.Counter(extent_in(run.blocks) for run in runs)

    def room(self, block_bytes: int) -> int:
        """How many more blocks of this size there are for those that grow."""
        with self.lock:
            return self._room.fit(block_bytes)

    def can_reserve(self, block_bytes: int, blocks: int) -> bool:
        """Whether a new request may have so many blocks."""
        with self.lock:
            left_bytes = self._room.total_bytes - blocks * block_bytes
            return left_bytes >= self.min_free_bytes and self.room(block_bytes) >= blocks

    def reserve(self, block_bytes: int, blocks: int) -> Reservation:
        """Sets blocks aside for a new request; cannot fail after `can_reserve` said yes.

        Raises:
            ValueError: It would have said no.
        """
        with self.lock:
            if not self.can_reserve(block_bytes, blocks):
                raise ValueError(f"no room for {blocks} blocks of {block_bytes} bytes: ask can_reserve first")
            reservation = Reservation(self, block_bytes, self._lend(block_bytes, blocks))
            self._held.add(reservation)
            self._keep_some_free()
        return reservation

    def can_grow(self, reservation: Reservation, blocks: int) -> bool:
        """Whether a reservation may have so many more blocks."""
        return self.room(reservation.block_bytes) >= blocks

    def extend(self, total_bytes: int) -> None:
        """The arena goes on to `total_bytes`."""
        with self.lock:
            more = Span(self.total_bytes, total_bytes)
            self._free.add(more)
            self._room.add(more)
            self.total_bytes = total_bytes

    def give_up(self, total_bytes: int) -> Span:
        """The arena ends at `total_bytes`, or as soon after as nothing that is lent lies beyond.

        Returns:
            The bytes that it has no more: whatever was kept there is gone.
        """
        with self.lock:
            end = max(total_bytes, self.total_bytes - self._room.last_bytes(self.total_bytes))
            for page in [each for each in self._unused if each.span.end > end]:
                self._evict(page)
            gone = Span(end, self.total_bytes)
            if gone.size_bytes:
                self._remove_free(gone)
            self.total_bytes = end
        return gone

    @contextlib.contextmanager
    def withheld(self, wanted: Span) -> Iterator[tuple[Span, ...]]:
        """What of `wanted` is free is lent to nobody while the scope lasts."""
        with self.lock:
            spans = self._free.within(wanted)
            for span in spans:
                self._remove_free(span)
                self._withheld.add(span)
        try:
            yield spans
        finally:
            with self.lock:
                for span in spans:
                    self._withheld.remove(span)
                    self._add_free(span)

    def check(self) -> None:
        """Raises AssertionError unless the bytes that are free, kept and used are all there are."""
        with self.lock:
            assert self.free_bytes + self.reclaimable_bytes == self._room.total_bytes
            assert self._room.total_bytes + self.used_bytes + self.withheld_bytes == self.total_bytes

    def check_spans(self) -> None:
        """Raises AssertionError unless every byte is free or lent exactly once; looks at every page there is."""
        with self.lock:
            unused = [page.span for page in self._unused]
            reserved = [span for reservation in self._held for span in reservation.spans()]
            in_use = [page.span for page in self._in_use]
            free = [*self._free.spans, *self._withheld.spans]
            edges = sorted([*reserved, *in_use, *unused, *free])
            assert edges == _abutting(edges, self.total_bytes), f"bytes lost or lent twice: {edges}"
            assert self._room.spans == SpanSet([*self._free.spans, *unused]).spans
            assert [self._reserved_bytes, self._in_use_bytes, self.reclaimable_bytes] == [
                sum(span.size_bytes for span in spans) for spans in (reserved, in_use, unused)
            ]

    def _lend(self, block_bytes: int, blocks: int) -> tuple[Run, ...]:
        self._make_room(block_bytes, blocks)
        self._reserved_bytes += blocks * block_bytes
        runs = self._free.lowest(block_bytes, blocks)
        for run in runs:
            self._remove_free(run.span(block_bytes))
        return runs

    def _grow(self, reservation: Reservation, blocks: int) -> tuple[Run, ...]:
        if not self.can_grow(reservation, blocks):
            raise ValueError(f"no room for {blocks} blocks more: ask can_grow first")
        return self._lend(reservation.block_bytes, blocks)

    def _make_room(self, block_bytes: int, blocks: int) -> None:
        while (missing := blocks - self._free.fit(block_bytes)) > 0:
            missing_bytes = missing * block_bytes
            while missing_bytes > 0 and self._unused:
                missing_bytes -= self._evict(next(iter(self._unused)))

    def _keep_some_free(self) -> None:
        """So that whoever grows need not wait until pages have gone."""
        while self._unused and self.free_bytes < self.min_free_bytes:
            self._evict(next(iter(self._unused)))

    def _evict(self, page: Page) -> int:
        self._free_unused(page)
        page.evicted()
        return page.total_bytes

    def _free_unused(self, page: Page) -> None:
        del self._unused[page]
        page.is_gone = True
        self._free.add(page.span)
        self.reclaimable_bytes -= page.total_bytes

    def _part(self, page: Page) -> None:
        self._in_use.add(page)
        self._in_use_bytes += page.total_bytes
        self._reserved_bytes -= page.total_bytes

    def _use(self, page: Page) -> None:
        del self._unused[page]
        self._in_use.add(page)
        self._in_use_bytes += page.total_bytes
        self._room.remove(page.span)
        self.reclaimable_bytes -= page.total_bytes

    def _rest(self, page: Page) -> None:
        self._in_use.remove(page)
        self._in_use_bytes -= page.total_bytes
        self._unused[page] = None
        self._room.add(page.span)
        self.reclaimable_bytes += page.total_bytes
        self._keep_some_free()

    def _give_back(self, reservation: Reservation) -> None:
        self._held.remove(reservation)
        self._reserved_bytes -= reservation.total_bytes
        for span in reservation.spans():
            self._add_free(span)

    def _add_free(self, span: Span) -> None:
        self._free.add(span)
        self._room.add(span)

    def _remove_free(self, span: Span) -> None:
        self._free.remove(span)
        self._room.remove(span)


def _abutting(spans: list[Span], total_bytes: int) -> list[Span]:
    """`spans` with each stretched to where the next begins: itself if nothing is lost and nothing overlaps."""
    starts = [span.start for span in spans]
    if not spans:
        return [] if total_bytes == 0 else [Span(0, total_bytes)]
    starts[0] = 0
    return [Span(start, end) for start, end in zip(starts, [*starts[1:], total_bytes], strict=True)]
