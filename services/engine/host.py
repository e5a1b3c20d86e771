"""What this host, or the control group that we live in, has for us."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

DEVICE_CLASS: Final = "cpu"  # what computes here, as artifacts may require it

_CGROUP: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: its affinity, or its control group's quota if that is less; at least 1."""
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), _quota(cgroup))))


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory of the host, or the control group's limit if that is less."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_read(cgroup / "memory.max"), _read(cgroup / "memory/memory.limit_in_bytes"))
    return min([host, *(int(limit) for limit in limits if limit.isdigit())])


def _quota(cgroup: Path) -> float:
    """Cores' worth of time per period: version 2's one file, or version 1's two."""
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
