"""Whether memory grows from swap to swap."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from bench.swap_memory import Memory, furthest, slope


def test_a_slope_that_noise_explains_is_at_least_less_than_none() -> None:
    """Outliers move it little; a true rise is told from none.

    Fault injection: turns red when the bound is taken from the other end of the slopes.
    """
    chance = random.Random(1)
    level = [1e6 + chance.gauss(0, 100) for _ in range(80)]
    level[40] = 5e6
    assert (
        slope(level).at_least < 0 < slope([each + 20 * number for number, each in enumerate(level)]).at_least
    )
    assert slope([10.0 + 3 * number for number in range(10)]) == pytest.approx((3.0, 3.0))


def test_a_look_counts_processes_and_the_files_of_weights(tmp_path: Path) -> None:
    """Whatever directory they lie in, and not etcd; what is largest is told as a share of the reference."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "weights").write_bytes(bytes(1 << 20))
    look = Memory.look({"me": os.getpid()}, tmp_path)
    assert look.by_name["me"] > 1 << 20
    assert look.weights_bytes == pytest.approx(1 << 20, rel=0.01)
    assert look.total_bytes == look.by_name["me"] + look.weights_bytes
    reference, others = (
        Memory({"one": 100, "etcd": 7}, 100),
        [Memory({"one": 90}, 100), Memory({"one": 110}, 100)],
    )
    assert furthest(others, reference) == pytest.approx(0.05)
