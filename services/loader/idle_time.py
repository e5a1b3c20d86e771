"""How long the cores of this host have had nothing to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(4, 6)  # of the first line's words: idle, and idle while a disk is waited for


def idle_s(stat: Path = _STAT) -> float:
    """Seconds since the host's start, of all cores together."""
    with stat.open(encoding="ascii") as lines:
        words = lines.readline().split()
    return sum(map(int, words[_IDLE])) / os.sysconf("SC_CLK_TCK")
