"""What a kernel tells of a host and its control groups, as a tree of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOTAL_KB = 9_000_000
AVAILABLE_KB = 8_000_000
GROUPS: Final = Path("sys/fs/cgroup")
_MEMINFO = (
    f"MemTotal: {TOTAL_KB} kB\nMemFree: 10 kB\nMemAvailable:    {AVAILABLE_KB} kB\nHugePages_Total: 0\n"
)
_MOUNTS: Final = {  # point below GROUPS to what is mounted there, and from where in its hierarchy
    "": "/ cgroup2 rw",
    "cpu,cpuacct": "/ cgroup rw,cpu,cpuacct",
    "cpuset": "/ cgroup rw,cpuset",
    "memory": "/ cgroup rw,memory",
}


def make_host(root: Path, groups: str, files: Mapping[str, str], mounts: Mapping[str, str] = _MOUNTS) -> Path:
    """A host of 9 GB, of which 1 GB is held; returns its root.

    Args:
        root: Where it is made.
        groups: /proc/self/cgroup.
        files: Content by path below /sys/fs/cgroup.
        mounts: Of control groups: their place below /sys/fs/cgroup to root, type and options.
    """
    texts = {
        "proc/meminfo": _MEMINFO,
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "21 1 0:1 / / rw shared:1 - ext4 /dev/a rw\n"
        + "".join(_mounted(point, *said.split()) for point, said in mounts.items()),
        **{str(GROUPS / name): text for name, text in files.items()},
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _mounted(point: str, root: str, kind: str, options: str) -> str:
    return f"35 31 0:32 {root} /{GROUPS / point} rw,relatime shared:9 - {kind} {kind} {options}\n"


def group(folder: str, limit: str, current: str, inactive: int = 0) -> dict[str, str]:
    """The files of a control group of version 2."""
    return {
        f"{folder}memory.max": f"{limit}\n",
        f"{folder}memory.current": current,
        f"{folder}memory.stat": f"anon 7\ninactive_file {inactive}\n",
    }
