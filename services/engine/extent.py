"""How a number of blocks is made up of extents: blocks side by side that begin at a multiple of their number. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from services.engine.span_set import Run

EXTENT_BLOCKS: Final = (16, 4, 1)  # 256, 64 and 16 tokens, the largest first
_SLACK: Final = 16  # a sequence grows by no more than this part of what it is expected to become


def growth(missing: int, expected_blocks: int) -> int:
    """How many blocks a running sequence asks for at once: as a rule an extent that suits its length.

    A short one grows block by block, one of 256 tokens by 1 and of 1,024 by 4: so it never holds more than a
    sixteenth of its length unused, and a long one asks seldom.

    Args:
        missing: Blocks that it cannot do without, at least 1.
        expected_blocks: That it will have at its end, as far as anybody knows.
    """
    fitting = (blocks for blocks in EXTENT_BLOCKS if blocks * _SLACK <= expected_blocks)
    return max(missing, next(fitting, 1))


def extents(run: Run) -> Iterator[int]:
    """The sizes of the largest extents that make up `run`, in order."""
    first, end = run.first, run.first + run.blocks
    while first < end:
        size = next(each for each in EXTENT_BLOCKS if first % each == 0 and first + each <= end)
        yield size
        first += size
