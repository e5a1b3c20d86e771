"""Soft and hard watermark with hysteresis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.watermark import Bounds, Level, Watermark, next_level
from tests.unit.scheduler.builders import BOUNDS

OPEN, SOFT, HARD = Level.OPEN, Level.SOFT, Level.HARD


@pytest.mark.parametrize(
    ("level", "occupancy", "expected"),
    [
        (OPEN, 0.00, OPEN),
        (OPEN, 0.75, OPEN),
        (OPEN, 0.76, SOFT),
        (OPEN, 0.90, SOFT),
        (OPEN, 0.91, HARD),
        (SOFT, 0.91, HARD),
        (SOFT, 0.90, SOFT),
        (SOFT, 0.70, SOFT),
        (SOFT, 0.69, OPEN),
        (HARD, 1.00, HARD),
        (HARD, 0.85, HARD),
        (HARD, 0.84, SOFT),
        (HARD, 0.70, SOFT),
        (HARD, 0.69, OPEN),
        (HARD, 0.00, OPEN),
    ],
)
def test_each_level_leads_to_the_next(level: Level, occupancy: float, expected: Level) -> None:
    """Above a mark its level begins; only below its release does it end."""
    assert expected is next_level(level, occupancy, BOUNDS)


@given(st.sampled_from(Level), st.floats(0, 1))
def test_an_occupancy_seen_twice_changes_nothing(level: Level, occupancy: float) -> None:
    """The level that an occupancy leads to is kept by it."""
    reached = next_level(level, occupancy, BOUNDS)
    assert reached is next_level(reached, occupancy, BOUNDS)


@given(st.lists(st.floats(0.86, 0.90)))
def test_between_release_and_mark_the_level_stays(occupancies: list[float]) -> None:
    """Once hard, an occupancy that swings below the mark and above the release stays hard."""
    watermark = Watermark(BOUNDS)
    watermark.observe(0.95)
    assert all(watermark.observe(occupancy) is HARD for occupancy in occupancies)


@pytest.mark.parametrize(
    "marks",
    [
        {"soft": 0.9, "hard": 0.8, "soft_release": 0.7, "hard_release": 0.75},
        {"soft": 0.7, "hard": 0.9, "soft_release": 0.8, "hard_release": 0.85},
        {"soft": 0.7, "hard": 0.9, "soft_release": 0.6, "hard_release": 0.95},
        {"soft": 0.7, "hard": 1.1, "soft_release": 0.6, "hard_release": 0.9},
        {"soft": 0.7, "hard": 0.9, "soft_release": 0.0, "hard_release": 0.8},
    ],
)
def test_marks_out_of_order_are_refused(marks: dict[str, float]) -> None:
    """Bounds that make no sense cannot be made."""
    with pytest.raises(ValueError, match="watermarks must satisfy"):
        Bounds(**marks)
