"""What everybody is asked for, by name and seed: programs of other environments make the same requests of it.

This module imports nothing beyond the standard library, as peers run it in environments of their own.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from bench.ask import Ask, Mix, Size

Measure = Literal["decode", "prefill", "generated"]
SHORT: Final = Size(60, 30)
LONG: Final = Size(500, 120)
LONG_SHARE: Final = 0.3


class Timing(NamedTuple):
    """When a request's tokens came, in seconds since all were asked for.

    Attributes:
        tokens: How many there were.
    """

    first_s: float
    last_s: float
    tokens: int


class Workload(NamedTuple):
    """Requests that are asked for together.

    Attributes:
        measure: What its rate is: tokens a second after the first one, tokens of the prompt until the first one, or
            all generated tokens until the last one.
        sizes: Of its requests.
        repeats: How often in a turn; the median counts.
    """

    name: str
    measure: Measure
    sizes: tuple[Size, ...]
    repeats: int = 1

    def asks(self, seed: int, vocabulary: int) -> list[Ask]:
        """The requests of one repeat: new tokens for every seed, in an order of chance."""
        chance = random.Random(f"{self.name} {seed}")
        mix = Mix(vocabulary, SHORT, LONG)
        sizes = chance.sample(self.sizes, len(self.sizes))
        return [mix.ask(chance, size) for size in sizes]

    def rate(self, timings: Sequence[Timing]) -> float:
        """Tokens per second.

        Raises:
            ValueError: A request gave another number of tokens than it was asked for.
        """
        if sorted(timing.tokens for timing in timings) != sorted(size.tokens for size in self.sizes):
            raise ValueError(f"{self.name}: answers of other lengths than asked for: {timings}")
        if self.measure == "prefill":
            return sum(size.prompt for size in self.sizes) / max(timing.first_s for timing in timings)
        if self.measure == "decode":
            return statistics.fmean((each.tokens - 1) / (each.last_s - each.first_s) for each in timings)
        return sum(size.tokens for size in self.sizes) / max(timing.last_s for timing in timings)


def _mix(at_once: int) -> Workload:
    long = round(LONG_SHARE * at_once)
    return Workload(f"mix{at_once}", "generated", (LONG,) * long + (SHORT,) * (at_once - long))


WORKLOADS: Final = {
    each.name: each
    for each in (
        Workload("decode128", "decode", (Size(128, 65),), repeats=3),
        Workload("decode1024", "decode", (Size(1024, 65),), repeats=2),
        Workload("prefill512", "prefill", (Size(512, 1),), repeats=5),
        Workload("prefill2048", "prefill", (Size(2048, 1),), repeats=3),
        Workload("single", "generated", (Size(128, 128),), repeats=3),
        _mix(8),
        _mix(32),
        _mix(64),
    )
}
MOST_TOKENS: Final = max(sum(size) for each in WORKLOADS.values() for size in each.sizes)
MOST_AT_ONCE: Final = max(len(each.sizes) for each in WORKLOADS.values())
