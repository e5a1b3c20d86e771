"""The most memory that a process had resident since a moment, beyond what it had then (man 5 proc)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple, Self

_RESET_PEAK: Final = "5"


class Peak(NamedTuple):
    """A process, and what it had resident when counting began."""

    pid: int
    before_bytes: int

    @classmethod
    def begin(cls, pid: int) -> Self:
        """Counts from now on."""
        (Path("/proc") / str(pid) / "clear_refs").write_text(_RESET_PEAK)
        return cls(pid, _field(pid, "VmRSS"))

    @property
    def beyond_bytes(self) -> int:
        return _field(self.pid, "VmHWM") - self.before_bytes


def _field(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", (Path("/proc") / str(pid) / "status").read_text())
    assert found, "another kernel than Linux"
    return int(found[1]) << 10
