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

from bench.swap_memory import Memory, Slope, slope
from tests.unit.engine.pressed_engine import play
from tests.unit.engine.random_moves import Move, Setting, moves, settings_of_engines
from tests.unit.engine.seen import Seen

EXAMPLES: Final = 20  # of a round; what comes after it is looked at
SETTLING: Final = 1 / 3  # of the run: until then heaps and hypothesis's tables grow into their size
_KIB: Final = 1024


def run_round(number: int, seen: Seen, examples: int = EXAMPLES) -> None:
    """Engines and moves of one seed; a failure is cut down to the few moves that it takes."""

    @seed(number)
    @settings(
        deadline=None,
        max_examples=examples,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(settings_of_engines, moves)
    def run(setting: Setting, made: list[Move]) -> None:
        play(setting, made, seen)

    run()


class Growth:
    """What this process holds after every round."""

    def __init__(self) -> None:
        self._looks: list[float] = []

    def look(self) -> None:
        """What is nobody's any more does not count."""
        gc.collect()
        held = Memory.look({"this": os.getpid()}, Path("/nonexistent"))
        self._looks.append(held.total_bytes / _KIB)

    @property
    def settled(self) -> list[float]:
        """Once heaps had their size, in KiB."""
        return self._looks[int(SETTLING * len(self._looks)) :]

    @property
    def slope(self) -> Slope:
        """In KiB for every round."""
        return slope(self.settled)

    def __str__(self) -> str:
        rise = self.slope
        return (
            f"{self.settled[-1] / _KIB:.0f} MiB, {rise.value:+.2f} KiB a round (at least {rise.at_least:+.2f}) "
            f"over {len(self.settled)} rounds"
        )


def run_for(seconds: float, first_seed: int) -> tuple[Seen, Growth]:
    """Round after round, until the time is up."""
    seen, growth, ends_at = Seen(), Growth(), time.monotonic() + seconds
    number = first_seed
    while time.monotonic() < ends_at:
        run_round(number, seen)
        growth.look()
        number += 1
    return seen, growth


def main(seconds: float, first_seed: int) -> int:
    seen, growth = run_for(seconds, first_seed)
    print(f"random run: {seconds:.0f} s, seeds from {first_seed}: {seen}; memory {growth}")
    if growth.slope.at_least > 0:
        print(f"memory grows: {growth.settled} KiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
