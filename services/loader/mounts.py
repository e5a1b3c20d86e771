"""What kind of file system a directory lies on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """One line of /proc/self/mounts."""

    point: Path
    kind: str
    options: frozenset[str]

    @property
    def is_memory(self) -> bool:
        return self.kind in ("tmpfs", "ramfs")


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The mounts of /proc/self/mounts (man 5 fstab), later ones over earlier."""
    mounts = []
    for line in text.splitlines():
        _, point, kind, options, *_ = line.split(" ")
        plain = os.fsencode(point).decode("unicode_escape").encode("latin-1")  # a space is written \040
        mounts.append(Mount(Path(os.fsdecode(plain)), kind, frozenset(options.split(","))))
    return tuple(mounts)


def mount_of(path: Path, mounts: tuple[Mount, ...]) -> Mount:
    """The mount that holds `path`: of those above it the nearest, of equals the last."""
    resolved = path.resolve()
    above = [mount for mount in mounts if resolved.is_relative_to(mount.point)]
    nearest = max(len(mount.point.parts) for mount in above)
    return next(mount for mount in reversed(above) if len(mount.point.parts) == nearest)


def read_mounts() -> tuple[Mount, ...]:
    return parse_mounts(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape"))
