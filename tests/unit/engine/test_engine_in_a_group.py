"""An engine's settings and libraries in a real control group, where the machine lets one be made."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from services.common.control_groups import control_groups

MEMORY: Final = 2 << 30
LIMITS: Final[Mapping[str, Mapping[int, Mapping[str, str]]]] = {
    "cpu": {
        1: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"},
        2: {"cpu.max": "100000 100000"},
    },
    "memory": {1: {"memory.limit_in_bytes": str(MEMORY)}, 2: {"memory.max": str(MEMORY)}},
}
LOOK: Final = """
import json, os, sys
from services.common.importing import importing
with importing():
    import torch
    from services.common.host_memory import HostMemory
    from services.engine.config import EngineConfig
    from services.engine.kernels.choice import choose_kernels
config = EngineConfig.load(["--loader", "127.0.0.1:1", "--ticket-key-file", sys.argv[1]])
torch.set_num_threads(config.threads)
kernels = choose_kernels("auto", config.threads)
torch.ones(512, 512) @ torch.ones(512, 512)
print(json.dumps({
    "threads": config.threads,
    "tasks": len(os.listdir("/proc/self/task")),
    "arena": config.kv_arena_bytes,
    "limit": HostMemory().limit_bytes,
}))
"""


@contextlib.contextmanager
def group(controller: str) -> Iterator[Path]:
    """A group below our own with the limits above; its cgroup.procs takes whoever is to live in it."""
    made = None
    for own in control_groups(controller):
        limits = LIMITS[controller][own.version]
        folder = own.folder / f"halogen-test-{os.getpid()}"
        if own.is_own and all((own.folder / name).exists() for name in limits):
            with contextlib.suppress(OSError):
                folder.mkdir()
                made = folder
                for name, value in limits.items():
                    (folder / name).write_text(value)
                break
    if made is None:
        pytest.skip(f"no group of {controller} can be made here")
    try:
        yield made / "cgroup.procs"
    finally:
        made.rmdir()


def look_around(key: Path, *groups: Path) -> dict[str, Any]:
    """What an engine finds that lives in the groups."""
    enter = " && ".join(f"echo $$ > {procs}" for procs in groups)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        ["sh", "-c", f'{enter} && exec "$0" -c "$1" "$2"', sys.executable, LOOK, str(key)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_an_engine_keeps_to_its_control_group(tmp_path: Path) -> None:
    """One processor and 2 GiB: one thread computes, no library starts any, a quarter of that memory is the arena's.

    Fault injection: turns red when `control_groups` gives none, or `importing` bounds no library's threads.
    """
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    with group("cpu") as processors, group("memory") as memory:
        found = look_around(key, processors, memory)
    assert {"threads": 1, "tasks": 1, "arena": MEMORY // 4, "limit": MEMORY} == found
