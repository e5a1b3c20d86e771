"""Signs that memory is short, as the kernel gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from services.common.control_groups import ControlGroup, control_groups

_STALLED: Final = 0.05  # of the time, somebody waits for memory
_KILLS: Final = frozenset({"oom", "oom_kill"})  # of memory.events
_HITS: Final = frozenset({"high", "max"})  # a limit was reached, perhaps only by files that can be dropped


class Signs(NamedTuple):
    """Counts that only rise.

    Attributes:
        stalled_us: Microseconds in which some task waited for memory.
        events: How often memory was not to be had.
    """

    stalled_us: int
    events: int

    def is_pressed_since(self, before: Signs, elapsed_s: float) -> bool:
        """Whether memory has been short since `before`, `elapsed_s` seconds ago."""
        return self.events > before.events or self.stalled_us - before.stalled_us > _STALLED * elapsed_s * 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Reads the signs of our control group: its pressure stall information, or the host's, and its events.

    Where neither tells how long tasks stall, it counts how often the group has reached a limit (version 2: memory.events,
    version 1: memory.failcnt). Else that is no sign: files that can be dropped fill every group in time.

    Attributes:
        root: Of all paths.
    """

    root: Path = Path("/")

    def read(self) -> Signs:
        """The signs as they stand; zeros where the kernel gives none."""
        own = [group for group in control_groups("memory", self.root) if group.is_own]
        stalls = [_lines(group.folder / "memory.pressure") for group in own]
        stalls.append(_lines(self.root / "proc/pressure/memory"))
        stalled_us = next((total for total in map(_stalled_us, stalls) if total >= 0), -1)
        events = sum(_events(group, counts_hits=stalled_us < 0) for group in own)
        return Signs(max(0, stalled_us), events)


def _stalled_us(lines: Iterable[list[str]]) -> int:
    """The total of the line ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12345``; -1 where there is none."""
    return next((int(line[-1].removeprefix("total=")) for line in lines if line[0] == "some"), -1)


def _events(group: ControlGroup, *, counts_hits: bool) -> int:
    counted = _KILLS | _HITS if counts_hits else _KILLS
    events = sum(int(line[1]) for line in _lines(group.folder / "memory.events") if line[0] in counted)
    hits = sum(int(line[0]) for line in _lines(group.folder / "memory.failcnt"))
    return events + (hits if counts_hits else 0)


def _lines(file: Path) -> list[list[str]]:
    """Words by line; none where there is no such file, or the kernel has the feature turned off."""
    try:
        return [line.split() for line in file.read_text(encoding="ascii").splitlines() if line]
    except OSError:
        return []
