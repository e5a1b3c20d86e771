"""Signs that memory is short, as the kernel gives them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final, NamedTuple

from services.common.host_memory import HostMemory

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

    Where neither is told how long tasks stall, it counts that the group has reached a limit (version 2: memory.events,
    version 1: memory.failcnt). Else that is none: files that can be dropped fill every group in time.

    Attributes:
        host: Where the kernel tells of memory.
    """

    host: HostMemory = HostMemory()

    def read(self) -> Signs:
        """The signs as they stand; zeros where the kernel gives none."""
        folders = self.host.own_folders
        stalls = [folder / "memory.pressure" for folder in folders] + [self.host.proc / "pressure" / "memory"]
        stalled_us = next((total for total in map(_stalled_us, stalls) if total >= 0), -1)
        counted = _KILLS if stalled_us >= 0 else _KILLS | _HITS
        return Signs(max(0, stalled_us), sum(_events(folder, counted) for folder in folders))


def _stalled_us(file: Path) -> int:
    """The total of the line ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12345``; -1 where it is not told."""
    totals = (int(line[-1].removeprefix("total=")) for line in _lines(file) if line[0] == "some")
    return next(totals, -1)


def _events(folder: Path, counted: frozenset[str]) -> int:
    events = sum(int(line[1]) for line in _lines(folder / "memory.events") if line[0] in counted)
    hits = sum(int(line[0]) for line in _lines(folder / "memory.failcnt"))
    return events + (hits if _HITS <= counted else 0)


def _lines(file: Path) -> list[list[str]]:
    """Words by line; none where there is no such file, or the kernel has the feature turned off."""
    try:
        return [line.split() for line in file.read_text(encoding="ascii").splitlines() if line]
    except OSError:
        return []
