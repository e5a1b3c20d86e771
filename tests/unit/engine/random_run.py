"""Random moves on engines for some seconds, in a process of its own: ``python -m tests.unit.engine.random_run SECONDS``.

Prints what has happened, and fails at the first thing that may not be, or when memory goes on growing.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from bench.swap_memory import Memory, Slope, slope
from tests.unit.engine.pressed_engine import play
from tests.unit.engine.random_moves import Move, Setting, engines, moves
from tests.unit.engine.seen import Seen

EXAMPLES: Final = 10  # of a round; what comes after it is looked at
SETTLING: Final = 1 / 3  # of the run: until then heaps and hypothesis's tables grow into their size
LEAST_ROUNDS: Final = 16  # on a busy machine a minute has fewer, and their heaps have not settled
LEAST_KEPT_BYTES: Final = 64  # less than anything takes that is kept for every request
_MIB: Final = 1 << 20


def run_round(
    number: int,
    seen: Seen,
    *,
    settings_of: SearchStrategy[Setting] = engines,
    examples: int = EXAMPLES,
    phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink),
) -> None:
    """Engines and moves of one seed; a failure is cut down to the few moves that it takes."""

    @seed(number)
    @settings(
        deadline=None,
        max_examples=examples,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(settings_of, moves)
    def run(setting: Setting, made: list[Move]) -> None:
        play(setting, made, seen)

    run()


class Growth:
    """What this process holds, after every round."""

    def __init__(self) -> None:
        self._looks: list[int] = []
        self._requests: list[int] = []  # until then

    def look(self, requests: int) -> None:
        """What is nobody's any more does not count.

        Args:
            requests: That there were until now.
        """
        gc.collect()
        self._looks.append(Memory.look({"this": os.getpid()}, Path("/nonexistent")).total_bytes)
        self._requests.append(requests)

    @property
    def rounds(self) -> int:
        """How many looks there were."""
        return len(self._looks)

    @property
    def per_request(self) -> Slope:
        """In bytes, once heaps had their size."""
        first = int(SETTLING * len(self._looks))
        requests = (self._requests[-1] - self._requests[first]) / max(1, len(self._looks) - first - 1)
        return Slope(*(each / requests for each in slope(self._looks[first:])))

    def __str__(self) -> str:
        return (
            f"{self._looks[-1] / _MIB:.1f} MiB, {self.per_request.value:+.1f} bytes a request "
            f"(at least {self.per_request.at_least:+.1f}) over {len(self._looks)} rounds"
        )


def run_for(seconds: float, first_seed: int) -> tuple[Seen, Growth]:
    """Round after round, until the time is up, everything that may happen has happened, and a slope can be told."""
    seen, growth, ends_at = Seen(), Growth(), time.monotonic() + seconds
    number = first_seed
    while time.monotonic() < ends_at or seen.missing or growth.rounds < LEAST_ROUNDS:
        run_round(number, seen)
        growth.look(seen.oracle.ends.total())
        number += 1
    return seen, growth


def main(seconds: float, first_seed: int) -> int:
    seen, growth = run_for(seconds, first_seed)
    print(f"random run: {seconds:.0f} s, seeds from {first_seed}: {seen}; memory {growth}")
    return 1 if growth.per_request.at_least >= LEAST_KEPT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
