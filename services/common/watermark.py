"""How full an engine may get before admission slows down and stops, with hysteresis."""

from __future__ import annotations

import dataclasses
import enum

import structlog

log = structlog.get_logger()


class Level(enum.Enum):
    """What occupancy allows."""

    OPEN = "open"  # the usual amount of unstarted prefill
    SOFT = "soft"  # half of it
    HARD = "hard"  # nothing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Occupancies, as shares of the arena, at which a level begins (above) and ends (below).

    Raises:
        ValueError: They are not in order; a release lies below its own mark.
    """

    soft: float
    hard: float
    soft_release: float
    hard_release: float

    def __post_init__(self) -> None:
        if not 0 < self.soft_release <= self.soft <= self.hard_release <= self.hard <= 1:
            raise ValueError(
                "watermarks must satisfy 0 < soft release <= soft <= hard release <= hard <= 1, "
                f"got {self.soft_release}, {self.soft}, {self.hard_release}, {self.hard}"
            )


class Watermark:
    """The level of one engine, advanced by every occupancy that is observed."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._level = Level.OPEN

    @property
    def level(self) -> Level:
        return self._level

    def observe(self, occupancy: float) -> Level:
        """Moves to the level that `occupancy` leads to from the present one."""
        reached = next_level(self._level, occupancy, self._bounds)
        if reached is not self._level:
            log.debug("watermark", old=self._level.value, new=reached.value, occupancy=round(occupancy, 4))
        self._level = reached
        return reached


def next_level(level: Level, occupancy: float, bounds: Bounds) -> Level:
    """The level after `level` at `occupancy`: marks are passed upwards, releases downwards."""
    if occupancy > bounds.hard or (level is Level.HARD and occupancy >= bounds.hard_release):
        return Level.HARD
    if occupancy > bounds.soft or (level is not Level.OPEN and occupancy >= bounds.soft_release):
        return Level.SOFT
    return Level.OPEN
