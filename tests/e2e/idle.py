"""What processes cost while they wait: time on the CPU, and memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SETTLE_S = 10


class Idle(NamedTuple):
    """Together, of all the processes; memory is what they have allocated, without pages of files."""

    core_share: float
    before_bytes: int
    after_bytes: int


def measure_idle(pids: Iterable[int], cpu_s: float, growth_s: float) -> Idle:
    """Looks at the CPU over `cpu_s` seconds and at memory over `growth_s`, the former within the latter."""
    pids = list(pids)
    time.sleep(SETTLE_S)
    before_bytes, cpu_before_s, began = anonymous_bytes(pids), _cpu_s(pids), time.monotonic()
    time.sleep(cpu_s)
    core_share = (_cpu_s(pids) - cpu_before_s) / (time.monotonic() - began)
    time.sleep(max(0.0, growth_s - cpu_s))
    return Idle(core_share, before_bytes, anonymous_bytes(pids))


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pids: Iterable[int]) -> int:
    """What they have allocated together, without pages of files."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(kib) << 10 for text in rollups for kib in re.findall(r"Anonymous: +(\d+) kB", text))
