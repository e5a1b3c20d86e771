"""The memory guard: arithmetic, and what it says."""

from __future__ import annotations

import pytest

from services.common.errors import Overloaded
from services.common.memory_guard import Bound, MemoryGuard

HOST = Bound("this host", 1000, 500)
FULL = Bound("the control group", 100, 90)


@pytest.mark.parametrize(
    ("ratio", "bounds", "need", "refusal"),
    [
        (0.85, [], 1 << 60, ""),
        (0.85, [HOST], 350, ""),
        (0.85, [HOST], 351, "needs 351 + holds 500 > 0.85 x limit 1000 bytes of this host"),
        (0.5, [HOST], 0, ""),
        (0.5, [HOST], 1, "needs 1 + holds 500 > 0.5 x limit 1000 bytes of this host"),
        (1, [HOST], 500, ""),
        (1, [HOST], 501, "needs 501 + holds 500 > 1 x limit 1000 bytes of this host"),
        (0.95, [HOST, FULL], 5, ""),
        (0.95, [FULL, HOST], 6, "needs 6 + holds 90 > 0.95 x limit 100 bytes of the control group"),
    ],
)
def test_a_load_stays_below_the_ratio_of_every_limit(
    ratio: float, bounds: list[Bound], need: int, refusal: str
) -> None:
    """The arithmetic of the first limit that it would pass is told."""
    assert refusal == MemoryGuard(ratio, lambda: bounds).refusal(need)


def test_a_refusal_says_what_to_do() -> None:
    """By reason for programs; by arithmetic and remedy for people."""
    guard = MemoryGuard(0.85, lambda: [HOST])
    guard.check(350)
    with pytest.raises(
        Overloaded,
        match=r"needs 351 .* of this host; free memory.*--memory-guard-ratio.*--checkpoint.memory-guard-ratio",
    ) as refused:
        guard.check(351)
    assert "MEMORY_GUARD" == refused.value.reason
    assert refused.value.retry_after_s
