"""A tmpfs of huge pages that is gone with the benchmark, however that ends.

The benchmark runs itself anew in a mount namespace of its own, which the kernel takes apart with the last process in
it. Without root's rights the namespace is that of a user namespace, where the host allows one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_INSIDE: Final = "HALOGEN_BENCH_MOUNTS"  # set where mounts are nobody else's


def enter_own_mounts(module: str) -> None:
    """Replaces this process by the same in a mount namespace of its own; returns where it is in one, or has to do without."""
    if _INSIDE in os.environ:
        return
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    alone = ["unshare", "--mount", *user]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
            command = [*alone, sys.executable, "-m", module, *sys.argv[1:]]
            os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


@contextlib.contextmanager
def huge_tmpfs(point: Path, size_bytes: int) -> Iterator[Path | None]:
    """A tmpfs mounted huge=always at `point` (made here) for the scope; None where the host gives none."""
    point.mkdir(parents=True, exist_ok=True)
    options = f"huge=always,size={size_bytes},mode=755"
    mount = ["mount", "-t", "tmpfs", "-o", options, "halogen-bench", str(point)]
    mounted = (
        _INSIDE in os.environ and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    try:
        yield point if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(point)], check=True)
        point.rmdir()
