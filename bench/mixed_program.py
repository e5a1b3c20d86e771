"""What both programs that replay arrivals have in common: a model of their own, and lines that tell what to replay."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from bench.arrivals import Arrival
from bench.lone_model import LoneModel, lone_model
from bench.replay import Replay, read_arrivals
from services.common.ids import ArtifactId
from services.common.lifecycle import Stop, run
from services.common.telemetry.logs import configure_logs


class Replayer(Protocol):
    """Answers requests as they come."""

    async def replay(self, arrivals: list[Arrival]) -> Replay:
        """Returns when the last one is answered."""
        ...


Open = Callable[[LoneModel], AbstractAsyncContextManager[Replayer]]


def run_program(what: str | None, argv: list[str], open_: Open) -> None:
    """Loads the model, opens the replayer, says `ready`; a line ``FROM TO`` replays one file into another.

    Args:
        what: The program's help.
        open_: Makes the replayer of a model.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("loader", help="host:port")
    parser.add_argument("artifact_id", type=ArtifactId)
    parser.add_argument("--threads", type=int, required=True, help="threads that compute")
    parser.add_argument("--arena-bytes", type=int, required=True, help="for keys and values")
    options = parser.parse_args(argv)
    configure_logs("bench", "warning")

    async def until_told(_stop: Stop) -> None:
        await _serve(options, open_)

    run(until_told)


async def _serve(options: argparse.Namespace, open_: Open) -> None:
    where = (options.loader, options.artifact_id, options.threads, options.arena_bytes)
    async with lone_model(*where) as lone, open_(lone) as replayer:
        print("ready", flush=True)
        while files := (await asyncio.to_thread(sys.stdin.readline)).split():
            replay = await replayer.replay(read_arrivals(Path(files[0])))
            replay.write(Path(files[1]))
            print("{}", flush=True)
