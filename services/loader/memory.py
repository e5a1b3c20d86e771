"""How much memory could be taken now without making the kernel kill somebody."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CGROUPS: Final = (  # limit, usage, statistics: version 2, then version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Free and reclaimable memory of the host, or of this process's control group if that has less."""
    meminfo = _pairs((proc / "meminfo").read_text())
    return min([meminfo["MemAvailable:"] * 1024, *_cgroup_rooms(cgroup)])


def _cgroup_rooms(root: Path) -> list[int]:
    """Limit minus use of the group seen at the root; cached files that can be dropped do not count as used."""
    for limit_name, usage_name, stat_name in _CGROUPS:
        if (root / limit_name).is_file():
            limit = (root / limit_name).read_text().strip()
            if not limit.isdigit():
                return []
            droppable = _pairs((root / stat_name).read_text()).get("inactive_file", 0)
            return [max(0, int(limit) - int((root / usage_name).read_text()) + droppable)]
    return []


def _pairs(text: str) -> dict[str, int]:
    return {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) >= 2}
