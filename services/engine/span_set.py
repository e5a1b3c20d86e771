"""Bytes of the arena as a sorted set of spans, none of which touches the next. Pure."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_MOST_SIZES: Final = 8  # that are counted along: more than there are models in an engine


class Span(NamedTuple):
    """Bytes start .. end - 1 of the arena."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Run(NamedTuple):
    """Blocks side by side: ids first .. first + blocks - 1."""

    first: int
    blocks: int

    def span(self, block_bytes: int) -> Span:
        return Span(self.first * block_bytes, (self.first + self.blocks) * block_bytes)


@dataclasses.dataclass(slots=True)
class _Fit:
    """How blocks of one size fit.

    Attributes:
        blocks: Whole ones, each at a multiple of its size.
        floor: No span that begins below has room for one.
    """

    blocks: int
    floor: float = 0


class SpanSet:
    """Spans that may grow, shrink and meet.

    How many blocks of a size there are is counted along from the first time that somebody asks, so that asking again
    costs nothing, however many spans there are.

    Args:
        spans: None of them overlaps another.

    Attributes:
        total_bytes: Of all spans.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.total_bytes = 0
        self._spans: list[Span] = []
        self._fits: dict[int, _Fit] = {}
        for span in spans:
            self.add(span)

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    def fit(self, block_bytes: int) -> int:
        """How many whole blocks lie in here."""
        return self._fit(block_bytes).blocks

    def lowest(self, block_bytes: int, blocks: int) -> tuple[Run, ...]:
        """The first so many blocks, or all there are."""
        runs: list[Run] = []
        for run in self._runs(block_bytes) if blocks else ():
            runs.append(run._replace(blocks=min(run.blocks, blocks)))
            blocks -= runs[-1].blocks
            if blocks == 0:
                break
        return tuple(runs)

    def within(self, wanted: Span) -> tuple[Span, ...]:
        """The bytes of `wanted` that are in here."""
        at = bisect.bisect_right(self._spans, wanted.start, key=_end)
        parts: list[Span] = []
        while at < len(self._spans) and self._spans[at].start < wanted.end:
            parts.append(Span(max(self._spans[at].start, wanted.start), min(self._spans[at].end, wanted.end)))
            at += 1
        return tuple(part for part in parts if part.start < part.end)

    def last_bytes(self, end: int) -> int:
        """How many bytes before `end` are in here, without a gap; nothing in here lies beyond it."""
        return self._spans[-1].size_bytes if self._spans and self._spans[-1].end == end else 0

    def add(self, span: Span) -> None:
        """Puts in bytes that are not in here."""
        if span.start == span.end:
            return
        at = bisect.bisect_left(self._spans, span)
        first = last = at
        start, end = span
        if at and self._spans[at - 1].end == start:
            first, start = at - 1, self._spans[at - 1].start
        if at < len(self._spans) and self._spans[at].start == end:
            last, end = at + 1, self._spans[at].end
        self._replace(first, last, [Span(start, end)])

    def remove(self, taken: Span) -> None:
        """Takes out bytes, all of which are in here.

        Raises:
            ValueError: They are not.
        """
        at = bisect.bisect_right(self._spans, taken.start, key=_start) - 1
        if at < 0 or self._spans[at].end < taken.end:
            raise ValueError(f"{taken} is not in here")
        whole = self._spans[at]
        rest = (Span(whole.start, taken.start), Span(taken.end, whole.end))
        self._replace(at, at + 1, [part for part in rest if part.start < part.end])

    def _replace(self, first: int, last: int, spans: list[Span]) -> None:
        gone = self._spans[first:last]
        self._spans[first:last] = spans
        self.total_bytes += sum(map(_size, spans)) - sum(map(_size, gone))
        for block_bytes, fit in self._fits.items():
            for span in gone:
                fit.blocks -= _blocks(span, block_bytes)
            for span in spans:
                if blocks := _blocks(span, block_bytes):
                    fit.blocks += blocks
                    fit.floor = min(fit.floor, span.start)

    def _fit(self, block_bytes: int) -> _Fit:
        if block_bytes not in self._fits:
            if len(self._fits) == _MOST_SIZES:
                del self._fits[next(iter(self._fits))]
            self._fits[block_bytes] = _Fit(sum(_blocks(span, block_bytes) for span in self._spans))
        return self._fits[block_bytes]

    def _runs(self, block_bytes: int) -> Iterator[Run]:
        """All blocks of this size; what is passed over once is not looked at again until something changes there."""
        fit = self._fit(block_bytes)
        at = bisect.bisect_left(self._spans, fit.floor, key=_start)
        while at < len(self._spans) and not _blocks(self._spans[at], block_bytes):
            at += 1
        fit.floor = self._spans[at].start if at < len(self._spans) else math.inf
        for index in range(at, len(self._spans)):
            span = self._spans[index]
            if blocks := _blocks(span, block_bytes):
                yield Run(-(-span.start // block_bytes), blocks)


def _start(span: Span) -> int:
    return span.start


def _end(span: Span) -> int:
    return span.end


def _size(span: Span) -> int:
    return span.end - span.start


def _blocks(span: Span, block_bytes: int) -> int:
    return max(0, span.end // block_bytes + -span.start // block_bytes)
