"""Sets of spans: what is counted along is what a count of all would give."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.engine import span_set
from services.engine.span_set import Run, Span, SpanSet

BYTES = 400
SIZES = (1, 7, 16, 64)


class SpanMachine(RuleBasedStateMachine):
    """Adds and removes any bytes; a set of single bytes is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.spans = SpanSet()
        self.bytes: set[int] = set()

    @rule(start=st.integers(0, BYTES), size=st.integers(0, 80))
    def add(self, start: int, size: int) -> None:
        wanted = {*range(start, start + size)}
        for byte_span in _spans(wanted - self.bytes):
            self.spans.add(byte_span)
        self.bytes |= wanted

    @rule(start=st.integers(0, BYTES), size=st.integers(1, 80))
    def remove(self, start: int, size: int) -> None:
        wanted = {*range(start, start + size)}
        if wanted <= self.bytes:
            self.spans.remove(Span(start, start + size))
            self.bytes -= wanted
        else:
            with pytest.raises(ValueError, match="not in here"):
                self.spans.remove(Span(start, start + size))

    @rule(size=st.sampled_from(SIZES), blocks=st.integers(0, 9))
    def lowest(self, size: int, blocks: int) -> None:
        runs = self.spans.lowest(size, blocks)
        ids = [run.first + i for run in runs for i in range(run.blocks)]
        assert self.blocks(size)[:blocks] == ids

    @rule(start=st.integers(0, BYTES), size=st.integers(0, 80))
    def within(self, start: int, size: int) -> None:
        assert _spans(self.bytes & {*range(start, start + size)}) == list(
            self.spans.within(Span(start, start + size))
        )

    def blocks(self, size: int) -> list[int]:
        return [
            block
            for block in range(2 * BYTES // size)
            if self.bytes.issuperset(range(block * size, (block + 1) * size))
        ]

    @invariant()
    def counts_are_right(self) -> None:
        assert _spans(self.bytes) == list(self.spans.spans)
        assert len(self.bytes) == self.spans.total_bytes
        assert [len(self.blocks(size)) for size in SIZES] == [self.spans.fit(size) for size in SIZES]


def _spans(bytes_: set[int]) -> list[Span]:
    starts = sorted(byte for byte in bytes_ if byte - 1 not in bytes_)
    ends = sorted(byte + 1 for byte in bytes_ if byte + 1 not in bytes_)
    return [Span(start, end) for start, end in zip(starts, ends, strict=True)]


SpanMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSpans = SpanMachine.TestCase


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60))
@settings(deadline=None)
def test_few_sizes_are_counted_along(sizes: list[int]) -> None:
    """However many generations there have been; a size that was forgotten is counted anew."""
    spans = SpanSet([Span(3, 200), Span(210, 391)])
    for size in sizes:
        expected = sum(max(0, span.end // size - -(-span.start // size)) for span in spans.spans)
        assert expected == spans.fit(size)
        assert len(spans._fits) <= span_set._MOST_SIZES


def test_what_is_too_small_is_passed_over_once() -> None:
    """Many holes before the first whole block cost nothing the second time; one that grows is found again.

    Fault injection: turns red when _replace leaves the floor where it is.
    """
    spans = SpanSet([Span(10 * i, 10 * i + 5) for i in range(100)])
    spans.add(Span(2000, 2100))
    assert (Run(200, 1),) == spans.lowest(10, 1)
    assert 2000 == spans._fits[10].floor
    spans.add(Span(45, 50))
    assert (Run(4, 1),) == spans.lowest(10, 1)
