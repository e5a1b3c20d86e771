"""Seeded schedules of publishes, slow loads, faults, crashes and outages over the modules that decide about swaps."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tests.simulation.schedule import LENGTH, Schedule
from tests.simulation.swap_invariants import INVARIANTS

SCHEDULES: Final = int(os.environ.get("HALOGEN_SCHEDULES", "200"))
FIRST_SEED: Final = int(os.environ.get("HALOGEN_FIRST_SEED", "0"))
PAGE: Final = Path(__file__).parents[2] / "docs" / "swap-invariants.md"


def test_every_invariant_holds_in_every_schedule() -> None:
    """A schedule that breaks one is cut down to the few moves that it takes, and printed with its seed.

    Fault injection: test_injected_faults.py has one for each invariant.
    """
    for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
        schedule = Schedule.of(seed)
        if (failure := schedule.failure) is not None:
            short = schedule.shrunk(failure)
            raise AssertionError(f"seed {seed}, in {len(short.moves)} moves: {short}") from failure
    print(
        f"schedules: {SCHEDULES} of {LENGTH} moves, seeds from {FIRST_SEED}; all of {len(INVARIANTS)} invariants held"
    )


def test_a_schedule_is_its_seed() -> None:
    """The same seed makes the same moves, and these leave the same records."""
    first, again = (Schedule.of(7).run() for _ in range(2))
    assert first.registry.entries.keys() == again.registry.entries.keys()
    assert first.now_s == again.now_s


def test_the_page_quotes_the_invariants() -> None:
    """docs/swap-invariants.md names each by its id, word for word."""
    rows = re.findall(r"^\| (I\d+) \| (.+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert INVARIANTS == dict(rows)
