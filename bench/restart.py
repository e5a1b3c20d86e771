"""How soon a system that was stopped answers again, and what its first request costs beside those that follow.

SmolLM2-135M-Instruct, registered and packed in an earlier run, as on any start but a host's first; everything else is
fresh. In every round: the way from PrepareArtifact to the first token, a loader and an engine alone in processes that
have just started, with the weights out of the page cache; then all five processes of a system, from the first exec until
the engine says that it is ready, its first request, and the median of those after it (60 tokens of prompt and 30 more).

    make bench BENCH=restart        or        python -m bench.restart --rounds 5 --json figures.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from bench import page_cache
from bench.ask import SMOLLM2_MIX, Ask
from bench.figure import Figure, write_figures
from bench.lone_loader import lone_loader
from bench.program import program
from bench.warm_memory import warm
from services.cli import demo, publish
from services.cli.control_client import Order
from services.cli.home import Home
from services.cli.stack import Stack, reserved_addresses
from services.common.checkpoint.artifact_store import read_manifest
from services.common.client import Client

REQUESTS: Final = 20  # after the first
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 120.0


class Restart(NamedTuple):
    """Seconds of one round."""

    first_token_s: float
    ready_s: float
    first_request_s: float
    request_s: float

    def __str__(self) -> str:
        return (
            f"PrepareArtifact to first token {self.first_token_s * 1e3:6.0f} ms   exec to ready {self.ready_s:5.2f} s   "
            f"first request {self.first_request_s * 1e3:6.0f} ms, median {self.request_s * 1e3:6.0f} ms"
        )


class Restarts:
    """Starts systems of one home.

    Args:
        home: Of all of them.
        artifact: Of the model, a directory.
        logs: For what programs say.
    """

    def __init__(self, home: Home, artifact: Path, logs: Path) -> None:
        self._home = home
        self._artifact = artifact
        self._logs = logs
        self._chance = random.Random(3)
        self._artifact_id = read_manifest(artifact).id

    async def first_run(self) -> None:
        """Registers and packs the model, and answers once."""
        with reserved_addresses() as addresses:
            async with Stack(self._home, addresses, print), Client(addresses.gateway) as client:
                order = Order("smollm2", "stable", "", who="bench", why="bench")
                await publish.publish(
                    addresses.gateway,
                    order,
                    self._artifact,
                    str(self._home.store),
                    reverify=False,
                    wait_s=_PATIENCE_S,
                )
                await self._ask(client)

    async def round(self) -> Restart:
        first_token_s = await self._first_token()
        with reserved_addresses() as addresses:
            began_s = time.perf_counter()
            async with Stack(self._home, addresses, print), Client(addresses.gateway) as client:
                await _until_ready(addresses.http["engine"])
                ready_s = time.perf_counter() - began_s
                first_s = await self._ask(client)
                others = [await self._ask(client) for _ in range(REQUESTS)]
        return Restart(first_token_s, ready_s, first_s, statistics.median(others))

    async def _first_token(self) -> float:
        """A loader and an engine that have just started, and nothing of the weights in memory."""
        assert self._home.cache
        weights = [*self._home.store.rglob("*.halogen"), *self._home.cache.rglob(f"{self._artifact_id}.*")]
        place = ("--cache-dir", str(self._home.cache))
        async with (
            lone_loader(self._home.store, place, 8, self._logs) as loader,
            program("bench.first_token", loader.address, logs=self._logs) as engine,
        ):
            page_cache.drop(weights)
            warm(2 * max(path.stat().st_size for path in weights))
            told = await engine.ask("v2", self._artifact_id)
        return float(told["first_token_s"])

    async def _ask(self, client: Client) -> float:
        """Seconds that a request takes whose prompt nobody has asked before."""
        ask: Ask = SMOLLM2_MIX.ask(self._chance, SMOLLM2_MIX.short)
        began_s = time.perf_counter()
        answer = await client.generate(
            ask.prompt, max_tokens=ask.tokens, temperature=0, ignore_eos=True
        ).complete()
        assert len(answer.token_ids) == ask.tokens
        return time.perf_counter() - began_s


async def _until_ready(address: str) -> None:
    async with asyncio.timeout(_PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{address}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(_LOOK_S)


def figures(rounds: list[Restart]) -> list[Figure]:
    def median(*values: float) -> float:
        return statistics.median(values)

    return [
        Figure(
            name="prepare_to_first_token_s",
            value=median(*(each.first_token_s for each in rounds)),
            unit="s",
            goal=1.0,
            better="lower",
        ),
        Figure(
            name="exec_to_ready_s", value=median(*(each.ready_s for each in rounds)), unit="s", better="lower"
        ),
        Figure(
            name="first_request_vs_median",
            value=median(*(each.first_request_s / each.request_s for each in rounds)),
            unit="x",
            goal=1.5,
            better="lower",
        ),
    ]


async def measure(folder: Path, rounds: int) -> list[Restart]:
    (kept := Home.find()).make()
    model = demo.ensure(kept.models)
    home, logs = Home(folder / ".halogen"), folder / "logs"
    home.make()
    logs.mkdir()
    restarts = Restarts(home, model.artifact, logs)
    await restarts.first_run()
    made = []
    for _ in range(rounds):
        made.append(await restarts.round())
        print(made[-1], flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="the medians count")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = figures(asyncio.run(measure(Path(folder), options.rounds)))
    print(*found, sep="\n")
    if options.json:
        write_figures(options.json, found)


if __name__ == "__main__":
    main()
