"""How much a running sequence takes at once: extents of 16, 64 or 256 tokens, by its length. Pure."""

from __future__ import annotations

from typing import Final

EXTENT_BLOCKS: Final = (16, 4, 1)  # the largest first
_SLACK: Final = 16  # a sequence takes no more than this part of what it is expected to become


def growth(missing: int, expected_blocks: int) -> int:
    """How many blocks a running sequence asks for at once.

    Less than 1,024 tokens grow block by block, less than 4,096 by 4 blocks, longer ones by 16: so none holds more than
    a sixteenth of its length unused, and long ones ask seldom.

    Args:
        missing: Blocks that it cannot do without, at least 1.
        expected_blocks: That it will have at its end, as far as anybody knows.
    """
    return max(missing, extent_in(expected_blocks // _SLACK))


def extent_in(blocks: int) -> int:
    """The largest extent, in blocks, that so many blocks have room for; the smallest for none."""
    return next((extent for extent in EXTENT_BLOCKS if extent <= blocks), EXTENT_BLOCKS[-1])
