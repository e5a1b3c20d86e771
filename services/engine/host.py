"""What this host, or the control groups that we live in, has for us."""

from __future__ import annotations

from typing import Final

from services.common.host_memory import HostMemory
from services.common.processors import usable_processors

DEVICE_CLASS: Final = "cpu"  # what computes here, as artifacts may require it


def usable_cores() -> int:
    """Threads that can compute at once."""
    return usable_processors()


def memory_bytes() -> int:
    """Memory that there is for this process, held or not."""
    return HostMemory().limit_bytes
