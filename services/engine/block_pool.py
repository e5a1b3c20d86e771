"""The arena's bytes, lent in blocks: who holds what, what is kept, and what is free. Pure bookkeeping, no memory in here."""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.engine.span_set import Run, Span, SpanSet


class BlockPool:
    """Lends blocks of one arena to generations whose blocks may differ in size.

    Block `i` of size `b` lies at bytes ``[i * b, (i + 1) * b)``, so that every generation sees the arena as an
    array of its own blocks. Any byte is free, in exactly one reservation, or in exactly one page. Pages that nobody
    uses count as room: they go, longest unused first, when a reservation needs their bytes.

    Args:
        total_bytes: Size of the arena.

    Attributes:
        reclaimable_bytes: In pages that nobody uses.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.reclaimable_bytes = 0
        self._free = SpanSet([Span(0, total_bytes)])
        self._room = SpanSet([Span(0, total_bytes)])  # what is free, and the pages that nobody uses
        self._held: set[Reservation] = set()
        self._in_use: set[Page] = set()
        self._unused: collections.OrderedDict[Page, None] = collections.OrderedDict()  # longest unused first

    @property
    def used_bytes(self) -> int:
        """Reserved, or in pages that somebody uses; each page once."""
        reserved = sum(reservation.total_bytes for reservation in self._held)
        return reserved + sum(page.total_bytes for page in self._in_use)

    @property
    def free_bytes(self) -> int:
        return self._free.total_bytes

    def room(self, block_bytes: int) -> int:
        """How many more blocks of this size can be reserved."""
        return self._room.fit(block_bytes)

    def can_reserve(self, block_bytes: int, blocks: int) -> bool:
        return self.room(block_bytes) >= blocks

    def reserve(self, block_bytes: int, blocks: int) -> Reservation:
        """Sets blocks aside, the lowest that are free; cannot fail after `can_reserve` said yes.

        Raises:
            ValueError: It would have said no.
        """
        if not self.can_reserve(block_bytes, blocks):
            raise ValueError(f"no room for {blocks} blocks of {block_bytes} bytes: ask can_reserve first")
        self._make_room(block_bytes, blocks)
        reservation = Reservation(self, block_bytes, self._free.lowest(block_bytes, blocks))
        for span in reservation.spans():
            self._free.remove(span)
            self._room.remove(span)
        self._held.add(reservation)
        return reservation

    def check(self) -> None:
        """Raises AssertionError unless the bytes that are free, kept and used are all there are."""
        assert self.free_bytes + self.reclaimable_bytes == self._room.total_bytes
        assert self._room.total_bytes + self.used_bytes == self.total_bytes

    def check_spans(self) -> None:
        """Raises AssertionError unless every byte is free or lent exactly once; looks at every page there is."""
        unused = [page.span for page in self._unused]
        lent = [span for reservation in self._held for span in reservation.spans()]
        lent += [page.span for page in self._in_use]
        edges = sorted([*lent, *unused, *self._free.spans])
        assert edges == _abutting(edges, self.total_bytes), f"bytes lost or lent twice: {edges}"
        assert self._room.spans == SpanSet([*self._free.spans, *unused]).spans
        assert self.reclaimable_bytes == sum(page.total_bytes for page in self._unused)

    def _make_room(self, block_bytes: int, blocks: int) -> None:
        while (missing := blocks - self._free.fit(block_bytes)) > 0:
            missing_bytes = missing * block_bytes
            while missing_bytes > 0 and self._unused:
                missing_bytes -= self._evict_oldest()

    def _evict_oldest(self) -> int:
        page = next(iter(self._unused))
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

    def _use(self, page: Page) -> None:
        del self._unused[page]
        self._in_use.add(page)
        self._room.remove(page.span)
        self.reclaimable_bytes -= page.total_bytes

    def _rest(self, page: Page) -> None:
        self._in_use.remove(page)
        self._unused[page] = None
        self._room.add(page.span)
        self.reclaimable_bytes += page.total_bytes

    def _give_back(self, reservation: Reservation) -> None:
        self._held.remove(reservation)
        for span in reservation.spans():
            self._free.add(span)
            self._room.add(span)


class Reservation:
    """A right to some blocks, handed out one by one; a scope that gives all of them back, once."""

    def __init__(self, pool: BlockPool, block_bytes: int, runs: tuple[Run, ...]) -> None:
        self.block_bytes = block_bytes
        self.blocks = sum(run.blocks for run in runs)
        self._pool = pool
        self._runs = runs
        self._parted: set[int] = set()
        self._untaken = iter([run.first + i for run in runs for i in range(run.blocks)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def total_bytes(self) -> int:
        return self.blocks * self.block_bytes

    def take(self) -> int:
        """The id of a block that nobody else writes to; another thread may call this.

        Raises:
            ValueError: Every block of the reservation has been taken.
        """
        for block in self._untaken:
            return block
        raise ValueError("all reserved blocks are taken: the worst case was computed too low")

    def part_with(self, block: int, evicted: Callable[[], object]) -> Page:
        """Makes a page of a taken block, which outlives the reservation; its maker is its first user.

        Args:
            block: Its id. Nobody writes to it any more.
            evicted: As `Page` has it.

        Raises:
            ValueError: It is no block of this reservation (any more).
        """
        if block in self._parted or not any(0 <= block - run.first < run.blocks for run in self._runs):
            raise ValueError(f"block {block} is not in this reservation (any more)")
        self._parted.add(block)
        self.blocks -= 1
        page = Page(self._pool, block, self.block_bytes, evicted)
        self._pool._part(page)  # noqa: SLF001  # the parts of one lending
        return page

    def close(self) -> None:
        """Gives every block back, taken or not, that it has not parted with.

        Raises:
            KeyError: They were given back before.
        """
        self._pool._give_back(self)  # noqa: SLF001  # the parts of one lending

    def spans(self) -> tuple[Span, ...]:
        """The bytes of its blocks."""
        own = SpanSet(run.span(self.block_bytes) for run in self._runs)
        for block in self._parted:
            own.remove(Run(block, 1).span(self.block_bytes))
        return own.spans


class Page:
    """A block that is written and stays as it is: as long as anybody uses it, and after that until its bytes are needed.

    Args:
        evicted: Called when its bytes are taken for something else; it is not to be pinned any more.

    Attributes:
        block: Its id.
        is_gone: Its bytes are free, or somebody else's.
    """

    def __init__(self, pool: BlockPool, block: int, block_bytes: int, evicted: Callable[[], object]) -> None:
        self.block = block
        self.evicted = evicted
        self.is_gone = False
        self._block_bytes = block_bytes
        self._pool = pool
        self._pins = 1
        self._is_kept = True

    @property
    def total_bytes(self) -> int:
        return self._block_bytes

    @property
    def span(self) -> Span:
        return Run(self.block, 1).span(self._block_bytes)

    def pin(self) -> None:
        """One more user; `unpin` follows once."""
        if not self._pins:
            self._pool._use(self)  # noqa: SLF001  # the parts of one lending
        self._pins += 1

    def unpin(self) -> None:
        """One user less; the last one leaves it to be reclaimed."""
        assert self._pins > 0
        self._pins -= 1
        if not self._pins:
            self._pool._rest(self)  # noqa: SLF001  # the parts of one lending
            self._free_if_unkept()

    def drop(self) -> None:
        """Keeps it no longer than anybody uses it: its bytes are free after that. It is not to be pinned any more."""
        self._is_kept = False
        self._free_if_unkept()

    def _free_if_unkept(self) -> None:
        if not (self._is_kept or self._pins or self.is_gone):
            self._pool._free_unused(self)  # noqa: SLF001  # the parts of one lending


def _abutting(spans: list[Span], total_bytes: int) -> list[Span]:
    """`spans` with each stretched to where the next begins: itself if nothing is lost and nothing overlaps."""
    starts = [span.start for span in spans]
    if not spans:
        return [] if total_bytes == 0 else [Span(0, total_bytes)]
    starts[0] = 0
    return [Span(start, end) for start, end in zip(starts, [*starts[1:], total_bytes], strict=True)]
