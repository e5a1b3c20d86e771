"""How many times as much one is as another, from pairs that were measured in turns, with bounds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

_CONFIDENCE: Final = 0.95  # of each bound by itself
_FEW: Final = (
    6.314,
    2.920,
    2.353,
    2.132,
    2.015,
    1.943,
    1.895,
    1.860,
    1.833,
)  # Student's t for 1, 2, ... degrees


class Ratio(NamedTuple):
    """A geometric mean of ratios, and where the true one lies.

    Attributes:
        at_least: With 95 % confidence it is not less than that; nothing is known from a single pair.
        at_most: With 95 % confidence it is not more.
    """

    mean: float
    at_least: float
    at_most: float
    pairs: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Self:
        """From the ratio of every pair: Student's t on their logarithms, as factors are what varies from pair to pair.

        Raises:
            ValueError: There is none, or one is not above 0.
        """
        if not ratios or min(ratios) <= 0:
            raise ValueError(f"ratios must be above 0, and one at least: {list(ratios)}")
        logs = [math.log(ratio) for ratio in ratios]
        mean = statistics.fmean(logs)
        if len(logs) == 1:
            return cls(math.exp(mean), 0.0, math.inf, 1)
        reach = quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.mean:.2f} (one pair)"
        return f"{self.mean:.2f} ({self.at_least:.2f} to {self.at_most:.2f}, {self.pairs} pairs)"


def quantile(degrees: int) -> float:
    """Student's t that 95 % lie below; from ten degrees on by the expansion of Cornish and Fisher."""
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z = statistics.NormalDist().inv_cdf(_CONFIDENCE)
    first = (z**3 + z) / (4 * degrees)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
