"""``python -m bench.engine_ours LOADER ARTIFACT_ID``: our engine without its wire, asked for workloads by lines.

Everything is as an engine's process has it by default, from the weights that its loader prepares to the step loop; what
is missing is gRPC. A line ``WORKLOAD SEED`` is answered with the times of its requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from typing import Final

from bench.ask import Ask
from bench.lone_model import LoneModel, default, engine_on, lone_model
from bench.workload import WORKLOADS, Timing
from services.common.ids import ArtifactId, RequestId, TicketId
from services.common.lifecycle import Stop, run
from services.common.telemetry.logs import configure_logs
from services.engine.engine import Engine
from services.engine.sequence import Sampling, TokenRequest

_numbers: Final = itertools.count()


class Ours:
    """A running engine with one model."""

    def __init__(self, engine: Engine, lone: LoneModel) -> None:
        self._engine = engine
        self._lone = lone

    async def run(self, workload: str, seed: int) -> list[Timing]:
        """All requests of a workload at once, each to its end."""
        asks = WORKLOADS[workload].asks(seed, self._lone.model.vocab_size)
        began_s = time.perf_counter()
        return list(await asyncio.gather(*(self._answer(ask, began_s) for ask in asks)))

    async def _answer(self, ask: Ask, began_s: float) -> Timing:
        number = next(_numbers)
        request = TokenRequest(
            id=RequestId(f"bench-{number}"), prompt=ask.prompt, sampling=Sampling(max_tokens=ask.tokens)
        )
        first_s, last_s, tokens = 0.0, 0.0, 0
        async with self._engine.run(self._lone, request, TicketId(f"bench-{number}")) as stream:
            async for piece in stream:
                if piece.token_ids:
                    last_s = time.perf_counter() - began_s
                    first_s = first_s or last_s
                    tokens += len(piece.token_ids)
        return Timing(first_s, last_s, tokens)


async def serve(options: argparse.Namespace) -> None:
    where = (options.loader, options.artifact_id, options.threads, default("kv_arena_bytes"))
    async with lone_model(*where) as lone, engine_on(lone.arena) as engine:
        ours = Ours(engine, lone)
        print("ready", flush=True)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            print(json.dumps({"timings": await ours.run(words[0], int(words[1]))}), flush=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", help="host:port")
    parser.add_argument("artifact_id", type=ArtifactId)
    parser.add_argument("--threads", type=int, required=True, help="threads that compute")
    options = parser.parse_args(argv)
    configure_logs("bench", "warning")

    async def until_told(_stop: Stop) -> None:
        await serve(options)

    run(until_told)


if __name__ == "__main__":
    main(sys.argv[1:])
