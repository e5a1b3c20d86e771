"""What every process does the same way when it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
STARTED = """
import contextlib, gc
from services.common import process
from services.common.registry.memory import MemoryStore
from services.common.rpc.address import Address
from services.gateway.config import GatewayConfig

async def serve(config, store, stop, started):
    started(Address("127.0.0.1", 50051))
    print("frozen:", gc.get_freeze_count())
    gc.collect()
    print("looked at:", len(gc.get_objects()))

process.open_store = lambda config: contextlib.nullcontext(MemoryStore())
process.launch(GatewayConfig, serve)
"""


def test_the_garbage_collector_looks_at_nothing_that_a_start_has_made() -> None:
    """Tens of thousands of objects of modules are kept for good; what is left to look at is little.

    Fault injection: turns red when `launch` does not call `keep_for_good`, or that does not freeze.
    """
    ran = subprocess.run(
        (sys.executable, "-c", STARTED),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = dict(line.split(": ") for line in ran.stdout.splitlines() if line.startswith(("frozen", "looked")))
    assert int(told["frozen"]) > 10_000
    assert int(told["looked at"]) < int(told["frozen"]) / 10
