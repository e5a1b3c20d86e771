"""Ratios from pairs, and their bounds."""

from __future__ import annotations

import math
import random

import pytest

from bench.ratio import Ratio, quantile


def test_a_ratio_is_a_geometric_mean_between_bounds() -> None:
    """Twice as fast once and half as fast once is neither; the bounds reach as far for both sides, as factors.

    Fault injection: turns red when the mean is that of the ratios themselves.
    """
    ratio = Ratio.of([2.0, 0.5])
    assert 1 == pytest.approx(ratio.mean)
    assert ratio.at_least < 1 < ratio.at_most
    assert 1 == pytest.approx(ratio.at_least * ratio.at_most)


def test_a_single_pair_bounds_nothing() -> None:
    """Its mean is told all the same."""
    assert Ratio(3.0, 0.0, math.inf, 1) == pytest.approx(Ratio.of([3.0]))


def test_no_pair_and_no_speed_are_refused() -> None:
    """What cannot be compared is no ratio."""
    for ratios in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="above 0"):
            Ratio.of(ratios)


def test_the_lower_bound_holds_as_often_as_it_says() -> None:
    """Of many sets of five noisy pairs, the true ratio lies above the bound in 95 of a hundred.

    Fault injection: turns red when the bound is taken from a normal distribution instead of Student's.
    """
    chance = random.Random(1)
    sets = [[1.5 * math.exp(chance.gauss(0, 0.1)) for _ in range(5)] for _ in range(4000)]
    above = sum(Ratio.of(ratios).at_least <= 1.5 for ratios in sets) / len(sets)
    assert 0.95 == pytest.approx(above, abs=0.012)


def test_students_quantile_goes_on_where_the_table_ends() -> None:
    """Values of the usual tables."""
    assert [6.314, 1.833] == [quantile(1), quantile(9)]
    assert [1.812, 1.725, 1.658] == pytest.approx([quantile(10), quantile(20), quantile(120)], abs=2e-3)
