"""``python -m bench.lone_loader FLAGS``: a loader that keeps its registry in its own memory; else it is as any other.

It says `ready` and then its address, as soon as it is reached there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.program import Program, program
from services.common import lifecycle
from services.common.registry.memory import MemoryStore
from services.common.rpc.address import Address
from services.common.telemetry.logs import configure_logs
from services.loader.config import LoaderConfig
from services.loader.serve import serve


class LoneLoader(NamedTuple):
    """A running loader."""

    program: Program
    address: str


@contextlib.asynccontextmanager
async def lone_loader(
    store: Path, place: Sequence[str], threads: int, logs: Path
) -> AsyncIterator[LoneLoader]:
    """Runs one for the scope.

    Args:
        place: The flags that say where it puts weights, and for how long.
        threads: Of those that read.
    """
    flags = ("--store", str(store), *place, "--load-thread-num", str(threads), "--grace-s", "0")
    async with program("bench.lone_loader", *flags, logs=logs) as running:
        yield LoneLoader(running, await running.heard())


def _say(bound: Address) -> None:
    print("ready", bound, sep="\n", flush=True)


def main(argv: Sequence[str]) -> None:
    config = LoaderConfig.load(argv)
    configure_logs(config.role, config.log_level)
    lifecycle.run(lambda stop: serve(config, MemoryStore(), stop, _say))


if __name__ == "__main__":
    main(sys.argv[1:])
