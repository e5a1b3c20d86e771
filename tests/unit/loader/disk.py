"""What tests do to files, and what they look at."""

from __future__ import annotations

import gc
from pathlib import Path


def flip(path: Path, position: int) -> None:
    """Changes one bit of the byte at `position`."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x40]))


def touch(path: Path) -> None:
    """Changes a file's time of change, which on some kernels rises in steps."""
    before_ns = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before_ns:
        path.chmod(0o644)


def open_descriptors() -> set[str]:
    """The numbers of this process's open descriptors, but for those that only garbage holds."""
    gc.collect()
    return {path.name for path in Path("/proc/self/fd").iterdir()}
