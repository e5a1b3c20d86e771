"""A host's memory as a tree of files, laid out as the kernel does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from services.common.host_memory import HostMemory

TOTAL_KB = 9_000_000
AVAILABLE_KB = 8_000_000
_MEMINFO = (
    f"MemTotal: {TOTAL_KB} kB\nMemFree: 10 kB\nMemAvailable:    {AVAILABLE_KB} kB\nHugePages_Total: 0\n"
)


def make_memory(root: Path, groups: str, files: Mapping[str, str]) -> HostMemory:
    """A host of 9 GB, of which 1 GB is held.

    Args:
        root: Where it is made.
        groups: /proc/self/cgroup.
        files: Content by path below the control groups.
    """
    memory = HostMemory(root / "proc", root / "cgroup")
    (memory.proc / "self").mkdir(parents=True)
    (memory.proc / "meminfo").write_text(_MEMINFO)
    (memory.proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        (memory.cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (memory.cgroup / name).write_text(text)
    return memory


def group(folder: str, limit: str, current: str, inactive: int = 0) -> dict[str, str]:
    """The files of a control group of version 2."""
    return {
        f"{folder}memory.max": f"{limit}\n",
        f"{folder}memory.current": current,
        f"{folder}memory.stat": f"anon 7\ninactive_file {inactive}\n",
    }
