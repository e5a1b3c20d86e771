"""The limits on this process's memory as the kernel tells them: of its control groups, and of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from services.common.memory_guard import Bound


class _Version(NamedTuple):
    """Where a version of control groups keeps what we read."""

    folder: str  # of the memory controller
    controllers: str  # as /proc/self/cgroup names it
    limit: str
    usage: str


_VERSIONS: Final = (
    _Version("", "", "memory.max", "memory.current"),
    _Version("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class HostMemory:
    """Reads limits.

    Attributes:
        proc: Where procfs is mounted.
        cgroup: Where control groups are.
    """

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def bounds(self) -> tuple[Bound, ...]:
        """The limits of this process's control group and of those above it, then the host's.

        Cached files that can be dropped do not count as held.
        """
        groups = (_group_bound(group, version) for group, version in self._groups())
        return (*(bound for bound in groups if bound), self._host_bound())

    def _host_bound(self) -> Bound:
        meminfo = _pairs(_read(self.proc / "meminfo"))
        total, available = (meminfo[name] * 1024 for name in ("MemTotal:", "MemAvailable:"))
        return Bound("this host", total, total - available)

    def _groups(self) -> Iterator[tuple[Path, _Version]]:
        for version in _VERSIONS:
            root = self.cgroup / version.folder
            own = root / self._own_group(version)
            yield from ((group, version) for group in (own, *own.parents) if group.is_relative_to(root))

    def _own_group(self, version: _Version) -> str:
        """Below the version's root; the root itself where the path leads nowhere that we see."""
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if version.controllers in controllers.split(",") and ".." not in path:
                return path.lstrip("/")
        return ""


def _group_bound(group: Path, version: _Version) -> Bound | None:
    """The group's limit, if it has one."""
    limit = _read(group / version.limit)
    if not limit.isdigit():
        return None
    droppable = _pairs(_read(group / "memory.stat")).get("inactive_file", 0)
    held_bytes = max(0, int(_read(group / version.usage)) - droppable)
    return Bound("the control group", int(limit), held_bytes)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _pairs(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}
