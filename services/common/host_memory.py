"""The limits on this process's memory as the kernel tells them: of its control groups, and of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from services.common.control_groups import ControlGroup, control_groups, read
from services.common.memory_guard import Bound


class _Files(NamedTuple):
    """Where a version of control groups keeps what we read."""

    limit: str
    usage: str


_FILES: Final = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: _Files("memory.max", "memory.current"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class HostMemory:
    """Reads limits.

    Attributes:
        root: Of all paths.
    """

    root: Path = Path("/")

    def bounds(self) -> tuple[Bound, ...]:
        """The limits of this process's control group and of those above it, then the host's.

        Cached files that can be dropped do not count as held.
        """
        return self._bounds(control_groups("memory", self.root))

    def shared_bounds(self) -> tuple[Bound, ...]:
        """The same without this process's own control group, in which other processes' memory does not count."""
        return self._bounds(group for group in control_groups("memory", self.root) if not group.is_own)

    @property
    def limit_bytes(self) -> int:
        """The least of all limits."""
        return min(bound.limit_bytes for bound in self.bounds())

    def _bounds(self, groups: Iterable[ControlGroup]) -> tuple[Bound, ...]:
        limits = (_group_bound(group) for group in groups)
        return (*(bound for bound in limits if bound), self._host_bound())

    def _host_bound(self) -> Bound:
        meminfo = _pairs(read(self.root / "proc/meminfo"))
        total, available = (meminfo[name] * 1024 for name in ("MemTotal:", "MemAvailable:"))
        return Bound("this host", total, total - available)


def _group_bound(group: ControlGroup) -> Bound | None:
    """The group's limit, if it has one."""
    files = _FILES[group.version]
    limit = group.read(files.limit)
    if not limit.isdecimal():
        return None
    held_bytes = max(0, int(group.read(files.usage)) - _droppable_bytes(group))
    return Bound("the control group", int(limit), held_bytes)


def _droppable_bytes(group: ControlGroup) -> int:
    """Of the group and those below it, which version 1 sums up under another name."""
    stat = _pairs(group.read("memory.stat"))
    return stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _pairs(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}
