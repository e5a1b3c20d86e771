"""What the disk gives at best: fio's direct reads into a small buffer of huge pages, which nobody looks at."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

BLOCK_BYTES: Final = 4 << 20
DEPTH: Final = 8


def obstacle() -> str:
    """Why fio cannot be run; empty if it can."""
    return "" if shutil.which("fio") else "fio is missing; on Debian: apt-get install fio"


def read_s(path: Path, huge_pages: Path) -> float:
    """Seconds that fio takes to read all of a file.

    Args:
        huge_pages: A directory on a tmpfs of huge pages, for the buffer.
    """
    buffer = huge_pages / "fio.buffer"
    with buffer.open("wb") as file:
        file.truncate(DEPTH * BLOCK_BYTES + (2 << 20))
    try:
        ended = subprocess.run(_command(path, buffer), capture_output=True, text=True, check=True)
    finally:
        buffer.unlink()
    read = json.loads(ended.stdout)["jobs"][0]["read"]
    return float(path.stat().st_size / read["bw_bytes"])


def _command(path: Path, buffer: Path) -> list[str]:
    size_bytes = path.stat().st_size // BLOCK_BYTES * BLOCK_BYTES
    return [
        "fio", "--name=read", f"--filename={path}", "--readonly", "--rw=read", "--direct=1",
        f"--bs={BLOCK_BYTES}", f"--size={size_bytes}", "--ioengine=libaio", f"--iodepth={DEPTH}",
        f"--iomem=mmapshared:{buffer}", "--output-format=json",
    ]  # fmt: skip
