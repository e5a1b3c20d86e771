"""How busy the machine is, and with whom: CPU time as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Self

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = (3, 4)  # fields of /proc/stat: idle, and waiting for a disk
_GUEST: Final = 8  # from here on, counted in the fields before


class Busy(NamedTuple):
    """CPU seconds so far.

    Attributes:
        at_s: By the monotonic clock.
        all_s: Of everybody, what a host took of a virtual machine included.
        own_s: Of this process, of those that it has started and that have ended, and of those that were asked about,
            with their descendants.
    """

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def look(cls, roots: Iterable[int]) -> Self:
        """Now.

        Args:
            roots: Ids of processes.
        """
        ended = os.times()  # with the children of this process that have ended
        own_s = time.process_time() + ended.children_user + ended.children_system
        return cls(time.monotonic(), _all_s(), own_s + _trees_s(roots))

    def others_cores(self, later: Self) -> float:
        """Cores that others than the own ones kept busy, on average from this look to a later one."""
        others_s = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return max(0.0, others_s / (later.at_s - self.at_s))


def _all_s() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = [int(ticks) for place, ticks in enumerate(fields[:_GUEST]) if place not in _IDLE]
    return sum(busy) / _TICKS_PER_S


def _trees_s(roots: Iterable[int]) -> float:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    own = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own) / _TICKS_PER_S
