"""Which blocks are asked for in one request."""

from __future__ import annotations

import pytest

from services.loader.block_runs import RUN_BLOCKS, BlockRun, plan_runs

FULL = RUN_BLOCKS


@pytest.mark.parametrize(
    ("missing", "ranged", "expected"),
    [
        ([], True, ()),
        ([], False, ()),
        ([0], True, (BlockRun(0, 1),)),
        ([0, 1, 2], True, (BlockRun(0, 3),)),
        ([0, 2, 3, 7], True, (BlockRun(0, 1), BlockRun(2, 4), BlockRun(7, 8))),
        ([1, 2, 7], False, (BlockRun(1, 8),)),
        (list(range(FULL + 1)), True, (BlockRun(0, FULL), BlockRun(FULL, FULL + 1))),
        (list(range(2, 2 * FULL + 2)), True, (BlockRun(2, FULL + 2), BlockRun(FULL + 2, 2 * FULL + 2))),
        (list(range(3 * FULL)), False, (BlockRun(0, 3 * FULL),)),
    ],
)
def test_missing_blocks_are_covered_by_runs(
    missing: list[int], ranged: bool, expected: tuple[BlockRun, ...]
) -> None:
    """Neighbours together, up to a bound; in one run where the store sends all from the start anyway."""
    assert expected == plan_runs(missing, ranged=ranged)
