"""How many processors this process can keep busy: what it may run on, and what its control groups allow of that."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from services.common.control_groups import ControlGroup, control_groups
from services.common.cpu_list import parse_cpus

# What a group's processes may run on; as it is in force first, which a group that asks for none has from those above it.
_CPUSETS: Final = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective", "cpuset.cpus")}


def usable_processors(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> int:
    """Whole processors, at least 1: the least of affinity, cpusets and quotas, of this process's groups and those above.

    Args:
        root: Of all paths.
        affinity: What it may run on; as the kernel says when not given.
    """
    may_run_on = os.sched_getaffinity(0) if affinity is None else affinity
    quotas = (_quota(group) for group in control_groups("cpu", root))
    return max(1, math.floor(min([len({*may_run_on}), *_cpusets(root), *quotas])))


def _cpusets(root: Path) -> Iterator[int]:
    for group in control_groups("cpuset", root):
        listed = filter(None, map(group.read, _CPUSETS[group.version]))
        if text := next(listed, ""):
            yield len(parse_cpus(text))


def _quota(group: ControlGroup) -> float:
    """Processors' worth of time per period; infinite where nothing is said."""
    if group.version == 1:
        quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
    else:
        quota, _, period = group.read("cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else math.inf
