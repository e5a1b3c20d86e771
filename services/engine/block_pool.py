"""The arena's bytes, lent in blocks: who holds what, and what is free. Pure bookkeeping, no memory in here."""

from __future__ import annotations

import bisect
from types import TracebackType
from typing import NamedTuple, Self


class Span(NamedTuple):
    """Bytes start .. end - 1 of the arena."""

    start: int
    end: int


class Run(NamedTuple):
    """Blocks side by side: ids first .. first + blocks - 1."""

    first: int
    blocks: int


class BlockPool:
    """Lends blocks of one arena to generations whose blocks may differ in size.

    Block `i` of size `b` lies at bytes ``[i * b, (i + 1) * b)``, so that every generation sees the arena as an
    array of its own blocks. Any byte is free or in exactly one reservation.

    Args:
        total_bytes: Size of the arena.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._free = [Span(0, total_bytes)] if total_bytes else []  # sorted, none touches the next
        self._held: set[Reservation] = set()

    @property
    def used_bytes(self) -> int:
        return sum(reservation.total_bytes for reservation in self._held)

    @property
    def free_bytes(self) -> int:
        return sum(span.end - span.start for span in self._free)

    def room(self, block_bytes: int) -> int:
        """How many more blocks of this size can be reserved."""
        return sum(_fit(span, block_bytes).blocks for span in self._free)

    def can_reserve(self, block_bytes: int, blocks: int) -> bool:
        return self.room(block_bytes) >= blocks

    def reserve(self, block_bytes: int, blocks: int) -> Reservation:
        """Sets blocks aside, the lowest that are free; cannot fail after `can_reserve` said yes.

        Raises:
            ValueError: It would have said no.
        """
        if not self.can_reserve(block_bytes, blocks):
            raise ValueError(f"no room for {blocks} blocks of {block_bytes} bytes: ask can_reserve first")
        reservation = Reservation(self, block_bytes, self._carve(block_bytes, blocks))
        self._held.add(reservation)
        return reservation

    def check(self) -> None:
        """Raises AssertionError unless every byte is free or held exactly once."""
        held = [span for reservation in self._held for span in reservation.spans()]
        edges = sorted(held + self._free)
        assert edges == _abutting(edges, self.total_bytes), f"bytes lost or lent twice: {edges}"
        assert all(left.end < right.start for left, right in zip(self._free, self._free[1:], strict=False))
        assert self.free_bytes + self.used_bytes == self.total_bytes

    def _carve(self, block_bytes: int, blocks: int) -> tuple[Run, ...]:
        runs: list[Run] = []
        for span in tuple(self._free):
            if blocks == 0:
                break
            run = _fit(span, block_bytes)
            run = run._replace(blocks=min(run.blocks, blocks))
            if run.blocks:
                self._cut(span, Span(run.first * block_bytes, (run.first + run.blocks) * block_bytes))
                runs.append(run)
                blocks -= run.blocks
        return tuple(runs)

    def _cut(self, span: Span, taken: Span) -> None:
        at = bisect.bisect_left(self._free, span)
        rest = (Span(span.start, taken.start), Span(taken.end, span.end))
        self._free[at : at + 1] = [part for part in rest if part.start < part.end]

    def _give_back(self, reservation: Reservation) -> None:
        self._held.remove(reservation)
        for span in reservation.spans():
            self._merge(span)

    def _merge(self, span: Span) -> None:
        at = bisect.bisect_left(self._free, span)
        first = last = at
        start, end = span
        if at and self._free[at - 1].end == start:
            first, start = at - 1, self._free[at - 1].start
        if at < len(self._free) and self._free[at].start == end:
            last, end = at + 1, self._free[at].end
        self._free[first:last] = [Span(start, end)]


class Reservation:
    """A right to some blocks, handed out one by one; a scope that gives all of them back, once."""

    def __init__(self, pool: BlockPool, block_bytes: int, runs: tuple[Run, ...]) -> None:
        self.block_bytes = block_bytes
        self.blocks = sum(run.blocks for run in runs)
        self._pool = pool
        self._runs = runs
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
        """The id of a block that nobody else writes to.

        Raises:
            ValueError: Every block of the reservation has been taken.
        """
        for block in self._untaken:
            return block
        raise ValueError(f"all {self.blocks} reserved blocks are taken: the worst case was computed too low")

    def close(self) -> None:
        """Gives every block back, taken or not.

        Raises:
            KeyError: They were given back before.
        """
        self._pool._give_back(self)  # noqa: SLF001  # the two halves of one lending

    def spans(self) -> list[Span]:
        size = self.block_bytes
        return [Span(run.first * size, (run.first + run.blocks) * size) for run in self._runs]


def _fit(span: Span, block_bytes: int) -> Run:
    first = -(-span.start // block_bytes)
    return Run(first, max(0, span.end // block_bytes - first))


def _abutting(spans: list[Span], total_bytes: int) -> list[Span]:
    """`spans` with each stretched to where the next begins: itself if nothing is lost and nothing overlaps."""
    starts = [span.start for span in spans]
    if not spans:
        return [] if total_bytes == 0 else [Span(0, total_bytes)]
    starts[0] = 0
    return [Span(start, end) for start, end in zip(starts, [*starts[1:], total_bytes], strict=True)]
