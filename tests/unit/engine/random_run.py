"""Random moves on engines for some seconds, in a process of its own: ``python -m tests.unit.engine.random_run SECONDS``.

Prints what has happened, and fails at the first thing that may not be, or when memory goes on growing.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from bench.swap_memory import Memory, Slope, slope
from services.engine.preemption import Way
from tests.unit.engine.pressed_engine import Seen, play
from tests.unit.engine.random_moves import Move, Setting, moves, settings_of_engines

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


def run_for(
    seconds: float, first_seed: int, clock: Callable[[], float] = time.monotonic
) -> tuple[Seen, Growth]:
    """Round after round, until the time is up."""
    seen, growth, ends_at = Seen(), Growth(), clock() + seconds
    number = first_seed
    while clock() < ends_at:
        run_round(number, seen)
        growth.look()
        number += 1
    return seen, growth


def told(seen: Seen, growth: Growth, seconds: float) -> str:
    """One line with figures."""
    ends = seen.oracle.ends
    how = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    full = seen.full_steps / max(1, seen.steps)
    rise = growth.slope
    return (
        f"random run: {seconds:.0f} s, {ends.total()} requests ({how}), {seen.preempted[Way.SWAP]} swapped and "
        f"{seen.preempted[Way.RECOMPUTE]} recomputed, {seen.starts} engines, {seen.replaced} generations replaced, "
        f"{seen.steps} steps, {full:.0%} of them with a full arena, {seen.found_tokens} tokens found; "
        f"memory {growth.settled[-1] / _KIB:.0f} MiB, {rise.value:+.1f} KiB a round, at least {rise.at_least:+.1f}"
    )


def main(seconds: float, first_seed: int) -> int:
    seen, growth = run_for(seconds, first_seed)
    print(told(seen, growth, seconds))
    if growth.slope.at_least > 0:
        print(f"memory grows: {growth.settled} KiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
