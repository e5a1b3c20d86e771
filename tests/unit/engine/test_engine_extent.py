"""Extents: how much a sequence takes at once when it grows."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.engine.extent import EXTENT_BLOCKS, growth


@given(expected_blocks=st.integers(0, 100_000), missing=st.integers(1, 100))
def test_no_sequence_takes_much_more_than_it_needs(expected_blocks: int, missing: int) -> None:
    """What it cannot do without, or one extent of at most a sixteenth of what it will come to, or one block."""
    blocks = growth(missing, expected_blocks)
    assert blocks >= missing
    assert blocks == missing or (blocks in EXTENT_BLOCKS and 16 * blocks <= max(16, expected_blocks))


@pytest.mark.parametrize(
    ("missing", "expected_blocks", "blocks"),
    [(1, 1, 1), (1, 63, 1), (1, 64, 4), (1, 255, 4), (1, 256, 16), (3, 20, 3), (5, 64, 5), (20, 300, 20)],
)
def test_a_sequence_grows_by_what_suits_its_length(missing: int, expected_blocks: int, blocks: int) -> None:
    """Short ones block by block, long ones by extents; never by less than they cannot do without."""
    assert blocks == growth(missing, expected_blocks)
