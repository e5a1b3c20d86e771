"""Weights swapped under load, and whether anybody notices.

Requests come at 0.6 of the capacity that the run measures first: of every ten seven short and three long ones, half of
them greedy and half sampled with a seed. Meanwhile artifacts are published in turns: the two story models, two of
SmolLM2-135M, two random Llamas of 1.1 billion weights that come cold from the disk. Every token is compared with what
the artifact that its stream named answers when it is asked alone. A window is the time from an engine's first
question for what comes to the last page of what goes; times per token inside of all windows stand beside those
outside. Then the same is done as without a hot swap: stop, load, start.

At last rollbacks, while the weights of another publish come at 100 KB/s.

    make bench BENCH=swap        or        python -m bench.swap --json figures.json

It takes an hour or more and makes its files in a work directory (8 GB, removed in the end).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import checkpoints, swap_models
from bench.ask import SMOLLM2_MIX, Mix, Size
from bench.figure import Figure, write_figures
from bench.loader import host
from bench.program import REPOSITORY
from bench.swap_figures import LEAST_TOKENS, figures, lines
from bench.swap_leg import Leg, swap
from bench.swap_models import Pair
from bench.swap_rollback import beside_slow_fetch_s
from services.cli.home import Home

SWAPS: Final = (100, 20, 10)
SMALL_SWAPS: Final = (2, 2, 0)
ROLLBACKS: Final = 5
MOST_ROLLBACK_S: Final = 1.0


def stories(pair: Pair, swaps: int) -> Leg:
    return Leg(
        name="stories",
        pair=pair,
        swaps=swaps,
        mix=Mix(512, short=Size(40, 20), long=Size(110, 60)),
        kv_arena_bytes=16 << 20,
        settling=350,
        window_tokens=0,
        steady_s=1,
        capacity_s=5,
        is_large=False,
    )


def smollm2(pair: Pair, swaps: int) -> Leg:
    return Leg(
        name="smollm2",
        pair=pair,
        swaps=swaps,
        mix=SMOLLM2_MIX,
        window_tokens=LEAST_TOKENS,
        settling=4,
        steady_s=10,
        capacity_s=20,
    )


def llama(pair: Pair, swaps: int) -> Leg:
    return Leg(
        name="llama",
        pair=pair,
        swaps=swaps,
        mix=Mix(32_000, short=Size(30, 40), long=Size(200, 120)),
        window_tokens=LEAST_TOKENS,
        steady_s=20,
        capacity_s=40,
        prompts=10,
        is_cold=True,
    )


def _shrunk(leg: Leg) -> Leg:
    return dataclasses.replace(leg, steady_s=0.5, capacity_s=1.5, prompts=8, settling=0, window_tokens=0)


class Bench:
    """The measurements, one after the other.

    Args:
        options: The command line's.
        folder: For all files.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._swaps: tuple[int, int, int] = SMALL_SWAPS if options.small else options.swaps
        self._is_small = options.small
        self._folder = folder
        self._home = Home(folder / ".halogen")
        self._home.make()

    def figures(self) -> list[Figure]:
        pair = swap_models.stories(self._home.store, self._folder)
        legs = []
        for leg in self._legs(pair):
            legs.append(asyncio.run(swap(leg, self._home)))
            print(*lines(legs[-1]), sep="\n", flush=True)
        return [*figures(legs, sum(self._swaps)), self._rollback(pair)]

    def _legs(self, pair: Pair) -> Iterator[Leg]:
        """Those in which there is anything to swap; artifacts are made when their turn comes."""
        first, second, third = self._swaps
        if self._is_small:
            yield _shrunk(stories(pair, first))
            yield dataclasses.replace(_shrunk(stories(pair, second)), name="small", is_large=True)
            return
        if first:
            yield stories(pair, first)
        if second:
            yield smollm2(swap_models.smollm2(self._home.store, self._folder), second)
        if third:
            two = swap_models.random_ones(self._home.store, self._folder, "llama", checkpoints.TINY_LLAMA)
            yield llama(two, third)

    def _rollback(self, pair: Pair) -> Figure:
        slow, _ = swap_models.random_ones(self._home.store, self._folder, "slow", checkpoints.SMALL)
        took_s = asyncio.run(beside_slow_fetch_s(self._home, pair, slow, ROLLBACKS))
        return Figure(
            name="rollback_beside_slow_fetch_s",
            value=max(took_s),
            unit="s",
            goal=MOST_ROLLBACK_S,
            better="lower",
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--swaps",
        type=int,
        nargs=3,
        default=SWAPS,
        metavar=("STORIES", "SMOLLM2", "LLAMA"),
        help="how many of each; 0 leaves one out",
    )
    parser.add_argument("--dir", type=Path, default=REPOSITORY, help="where 8 GB may lie meanwhile")
    parser.add_argument(
        "--small",
        action="store_true",
        help="2 swaps and 2 more of the story models: shows that it works, not how well",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.dir.mkdir(parents=True, exist_ok=True)
    print(host(), flush=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".bench-") as folder:
        found = Bench(options, Path(folder)).figures()
    print(*found, sep="\n")
    if options.json:
        write_figures(options.json, found)


if __name__ == "__main__":
    main()
