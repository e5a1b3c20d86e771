"""Bytes of the arena as a sorted set of spans, none of which touches the next. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple


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


class SpanSet:
    """Spans that may grow, shrink and meet.

    Args:
        spans: None of them overlaps another.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for span in spans:
            self.add(span)

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    @property
    def total_bytes(self) -> int:
        return sum(span.size_bytes for span in self._spans)

    def fit(self, block_bytes: int) -> int:
        """How many whole blocks lie in here."""
        return sum(_fit(span, block_bytes).blocks for span in self._spans)

    def lowest(self, block_bytes: int, blocks: int) -> tuple[Run, ...]:
        """The first so many blocks, or all there are."""
        runs: list[Run] = []
        for span in self._spans:
            if blocks == 0:
                break
            run = _fit(span, block_bytes)
            run = run._replace(blocks=min(run.blocks, blocks))
            if run.blocks:
                runs.append(run)
                blocks -= run.blocks
        return tuple(runs)

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
        self._spans[first:last] = [Span(start, end)]

    def remove(self, taken: Span) -> None:
        """Takes out bytes, all of which are in here.

        Raises:
            ValueError: They are not.
        """
        at = bisect.bisect_right(self._spans, taken.start, key=lambda span: span.start) - 1
        if at < 0 or self._spans[at].end < taken.end:
            raise ValueError(f"{taken} is not in here")
        whole = self._spans[at]
        rest = (Span(whole.start, taken.start), Span(taken.end, whole.end))
        self._spans[at : at + 1] = [part for part in rest if part.start < part.end]


def _fit(span: Span, block_bytes: int) -> Run:
    first = -(-span.start // block_bytes)
    return Run(first, max(0, span.end // block_bytes - first))
