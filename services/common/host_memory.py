"""The limits on this process's memory as the kernel tells them: of its control groups, and of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
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


class _Group(NamedTuple):
    """A control group: this process's own, or one above it."""

    folder: Path
    version: _Version
    is_own: bool


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
        return self._bounds(self._groups())

    def shared_bounds(self) -> tuple[Bound, ...]:
        """The same without this process's own control group, in which other processes' memory does not count."""
        return self._bounds(group for group in self._groups() if not group.is_own)

    def _bounds(self, groups: Iterable[_Group]) -> tuple[Bound, ...]:
        limits = (_group_bound(group) for group in groups)
        return (*(bound for bound in limits if bound), self._host_bound())

    def _host_bound(self) -> Bound:
        meminfo = _pairs(_read(self.proc / "meminfo"))
        total, available = (meminfo[name] * 1024 for name in ("MemTotal:", "MemAvailable:"))
        return Bound("this host", total, total - available)

    def _groups(self) -> Iterator[_Group]:
        for version in _VERSIONS:
            root = self.cgroup / version.folder
            own = root / self._own_group(version)
            above = (path for path in own.parents if path.is_relative_to(root))
            yield from (_Group(path, version, is_own=path == own) for path in (own, *above))

    def _own_group(self, version: _Version) -> str:
        """Below the version's root; the root itself where the path leads nowhere that we see."""
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if version.controllers in controllers.split(",") and ".." not in path:
                return path.lstrip("/")
        return ""


def _group_bound(group: _Group) -> Bound | None:
    """The group's limit, if it has one."""
    limit = _read(group.folder / group.version.limit)
    if not limit.isdigit():
        return None
    droppable = _pairs(_read(group.folder / "memory.stat")).get("inactive_file", 0)
    held_bytes = max(0, int(_read(group.folder / group.version.usage)) - droppable)
    return Bound("the control group", int(limit), held_bytes)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _pairs(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}
