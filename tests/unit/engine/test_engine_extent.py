"""Extents: what a number of blocks is made of, and how much a sequence takes at once when it grows."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.engine.extent import EXTENT_BLOCKS, extents, growth
from services.engine.span_set import Run


@given(first=st.integers(0, 200), blocks=st.integers(0, 200))
def test_extents_are_aligned_and_make_up_the_run(first: int, blocks: int) -> None:
    """One follows the other, each at a multiple of its size; none could be twice as good."""
    at = first
    for size in extents(Run(first, blocks)):
        assert size in EXTENT_BLOCKS
        assert 0 == at % size
        larger = [each for each in EXTENT_BLOCKS if each > size]
        assert not any(at % each == 0 and at + each <= first + blocks for each in larger)
        at += size
    assert first + blocks == at


@pytest.mark.parametrize(
    ("missing", "expected_blocks", "blocks"),
    [(1, 1, 1), (1, 63, 1), (1, 64, 4), (1, 255, 4), (1, 256, 16), (3, 20, 3), (5, 64, 5), (20, 300, 20)],
)
def test_a_sequence_grows_by_what_suits_its_length(missing: int, expected_blocks: int, blocks: int) -> None:
    """Short ones block by block, long ones by extents; never by less than they cannot do without."""
    assert blocks == growth(missing, expected_blocks)
