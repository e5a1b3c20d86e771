"""An engine with a full arena, several models and generations, through whatever may happen, in any order."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.unit.engine.pressed_engine import Seen, play
from tests.unit.engine.random_moves import Move, Setting, moves, settings_of_engines


def test_try() -> None:
    seen = Seen()

    @given(settings_of_engines, moves)
    @settings(deadline=None, max_examples=300, database=None, suppress_health_check=list(HealthCheck))
    def once(setting: Setting, made: list[Move]) -> None:
        play(setting, made, seen)

    once()
    print(vars(seen), seen.oracle.ends)
