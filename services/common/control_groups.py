"""The control groups that this process lives in, of both versions, with those above them, as the kernel tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_UNIFIED: Final = ""  # the name, in /proc/self/cgroup, of version 2's only hierarchy


class ControlGroup(NamedTuple):
    """A group as a folder of files.

    Attributes:
        version: 1 or 2: what its files are called.
        is_own: Whether this process is in it, and not merely below it.
    """

    folder: Path
    version: int
    is_own: bool

    def read(self, name: str) -> str:
        """A file's text without spaces around it; empty where there is none."""
        return read(self.folder / name)


class _Mount(NamedTuple):
    """Where a hierarchy is seen, from `root` of it downwards."""

    point: Path
    root: str
    controllers: tuple[str, ...]


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """The groups that may bound this process's use of what `controller` is for, its own before those above it.

    Args:
        controller: By the kernel's name: "cpu", "cpuset", "memory".
        root: Of all paths.
    """
    paths = _paths(read(root / "proc/self/cgroup"))
    for mount in _mounts(read(root / "proc/self/mountinfo"), root):
        for name, version in ((controller, 1), (_UNIFIED, 2)):
            if name in mount.controllers and name in paths:
                yield from _upwards(mount, paths[name], version)


def read(path: Path) -> str:
    """A file's text without spaces around it; empty where there is none."""
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _paths(text: str) -> dict[str, str]:
    """Controller to the path of this process's group: lines like ``4:cpu,cpuacct:/jobs``, ``0::/jobs`` for version 2."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return {name: path for _, controllers, path in lines for name in controllers.split(",")}


def _mounts(text: str, root: Path) -> Iterator[_Mount]:
    """From lines like ``35 31 0:32 /jobs /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory``."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split(" ")
        if kind in {"cgroup", "cgroup2"}:
            path, point = before.split(" ")[3:5]
            controllers = (_UNIFIED,) if kind == "cgroup2" else tuple(options.split(","))
            yield _Mount(root / point.lstrip("/"), path, controllers)


def _upwards(mount: _Mount, path: str, version: int) -> Iterator[ControlGroup]:
    """The group at `path` of a hierarchy, and those above it that are seen here."""
    own = mount.point / _below(path, mount.root)
    if not own.is_dir():  # another namespace's words: all that is seen is what is mounted
        own = mount.point
    above = (folder for folder in own.parents if folder.is_relative_to(mount.point))
    yield from (ControlGroup(folder, version, is_own=folder == own) for folder in (own, *above))


def _below(path: str, root: str) -> str:
    """The rest of `path` below `root`; nothing where it leads elsewhere."""
    is_below = Path(path).is_relative_to(root) and ".." not in Path(path).parts
    return str(Path(path).relative_to(root)) if is_below else ""
