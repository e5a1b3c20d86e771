"""Short requests beside long ones: our engine against plain first come, first served with fixed blocks.

Two mixes: 70 % with 200 tokens of prompt and 100 of answer, 30 % with 1,800 and 512; and a trace of a real chat service
($HALOGEN_TRACE, or --trace), its lengths scaled to those of the first mix and its times to what this machine can do; how
long its answers become nobody knows beforehand. Both have the same kernels, the same arena (a small one, for two long
requests and a short one: memory is what they queue for), the same chunks and batch, no wire; they take turns, each in
a process of its own. Requests come at their own times: at --load of what the plain one gets done a second when it is
given all of them at once.

    HALOGEN_TRACE=trace.csv python -m bench.mixed --json figures.json --plots docs
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import engine_model
from bench.arrivals import LONG, SHORT, Arrival, drawn, stretched, traced
from bench.engine_figures import ratio_figures
from bench.engine_model import EngineModel
from bench.engine_names import OURS
from bench.figure import Figure, write_figures
from bench.huge_tmpfs import enter_own_mounts, huge_tmpfs
from bench.loader import host
from bench.lone_loader import lone_loader
from bench.mixed_plots import write_plots
from bench.program import REPOSITORY, Program, program
from bench.ratio import Ratio
from bench.replay import Replay, write_arrivals

FIFO: Final = "fifo"
MOST_SHORT_RATIO: Final = 0.5
MOST_LONG_RATIO: Final = 0.6
MOST_FRAGMENTATION: Final = 0.08
ARENA_TOKENS: Final = 2 * sum(LONG) + sum(SHORT)
_WARM: Final = 24  # requests, from which an engine knows what to expect
_ROOM: Final = 2 << 30
_LOADER_THREADS: Final = 8


class Pair(NamedTuple):
    """Both replays of one round."""

    fifo: Replay
    ours: Replay

    @property
    def short_ratio(self) -> float:
        return self.ours.short_p99_s / self.fifo.short_p99_s

    @property
    def long_ratio(self) -> float:
        return self.ours.long_first_s / self.fifo.long_first_s

    def __str__(self) -> str:
        lines = []
        for name, replay in ((FIFO, self.fifo), (OURS, self.ours)):
            times = f"short p99 {replay.short_p99_s:6.2f} s  long first token {replay.long_first_s:6.2f} s"
            rest = f"fragmentation {replay.fragmentation:5.1%}  all done after {replay.seconds:6.1f} s"
            lines.append(f"  {name:8} {times}  {rest}")
        return "\n".join(lines)


class Mixed(NamedTuple):
    """Both programs, ready.

    Attributes:
        work: For files that go to and fro.
    """

    fifo: Program
    ours: Program
    work: Path

    async def pair(self, arrivals: list[Arrival]) -> Pair:
        """The same requests for both, one after the other."""
        return Pair(await self.replay(self.fifo, arrivals), await self.replay(self.ours, arrivals))

    async def replay(self, who: Program, arrivals: list[Arrival]) -> Replay:
        write_arrivals(self.work / "arrivals.json", arrivals)
        await who.ask(str(self.work / "arrivals.json"), str(self.work / "replay.json"))
        return Replay.read(self.work / "replay.json")

    async def rounds(self, arrivals: list[Arrival], load: float, count: int) -> list[Pair]:
        """Measures what the plain one can do, and has both replay the requests at a part of that."""
        capacity = await self.replay(self.fifo, stretched(arrivals, 0))
        await self.replay(self.ours, stretched(arrivals[:_WARM], 0))  # its turn to warm up
        print(f"  capacity of {FIFO}: {len(arrivals) / capacity.seconds:.2f} requests/s", flush=True)
        come = stretched(arrivals, capacity.seconds / load)
        pairs = []
        for _ in range(count):
            pairs.append(await self.pair(come))
            print(pairs[-1], flush=True)
        return pairs


@contextlib.asynccontextmanager
async def mixed(
    model: EngineModel, place: tuple[str, ...], options: argparse.Namespace, work: Path
) -> AsyncIterator[Mixed]:
    """Both for the scope."""
    arena_bytes = options.arena_tokens * model.shape.token_bytes
    told = ("--threads", str(options.threads), "--arena-bytes", str(arena_bytes))
    place = (*place, "--cache-dir", str(model.cache))
    async with lone_loader(model.store, place, _LOADER_THREADS, work) as loader:
        arguments = (loader.address, model.artifact_id, *told)
        async with (
            program("bench.mixed_fifo", *arguments, logs=work) as fifo,
            program("bench.mixed_ours", *arguments, logs=work) as ours,
        ):
            yield Mixed(fifo, ours, work)


def figures(found: dict[str, list[Pair]]) -> Iterator[Figure]:
    """What is promised: the worse of the mixes counts."""
    short = {name: Ratio.of([pair.short_ratio for pair in pairs]) for name, pairs in found.items()}
    long = {name: Ratio.of([pair.long_ratio for pair in pairs]) for name, pairs in found.items()}
    for what, ratios, goal in (
        ("short_p99", short, MOST_SHORT_RATIO),
        ("long_first_token", long, MOST_LONG_RATIO),
    ):
        yield from ratio_figures(f"{what}_vs_fifo", max(ratios.values()), goal, "lower")
        for name, ratio in ratios.items():
            yield Figure(name=f"{what}_vs_fifo_{name}", value=ratio.mean, unit="x", better="lower")
    yield _fragmentation(
        "internal_fragmentation",
        [pair.ours for pairs in found.values() for pair in pairs],
        MOST_FRAGMENTATION,
    )
    yield _fragmentation(
        "internal_fragmentation_fifo", [pair.fifo for pairs in found.values() for pair in pairs], None
    )


def _fragmentation(name: str, replays: list[Replay], goal: float | None) -> Figure:
    return Figure(
        name=name, value=max(each.fragmentation for each in replays), unit="", goal=goal, better="lower"
    )


def mixes(options: argparse.Namespace) -> Iterator[tuple[str, list[Arrival]]]:
    """The requests of each mix that there is."""
    yield "drawn", drawn(options.requests, seed=1)
    if options.trace:
        yield "trace", traced(options.trace, options.requests, options.scale)
    else:
        print("without a trace: neither $HALOGEN_TRACE nor --trace names one", flush=True)


async def measure(options: argparse.Namespace, work: Path, place: tuple[str, ...]) -> dict[str, list[Pair]]:
    model = engine_model.made(options.dir, "tiny" if options.small else "small")
    found = {}
    async with mixed(model, place, options, work) as both:
        for name, arrivals in mixes(options):
            print(
                f"{name}: {len(arrivals)} requests, {sum(each.is_long for each in arrivals)} of them long",
                flush=True,
            )
            found[name] = await both.rounds(arrivals, options.load, options.rounds)
    return found


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = os.environ.get("HALOGEN_TRACE")
    parser.add_argument(
        "--trace", type=Path, default=Path(named) if named else None, help="CSV; or $HALOGEN_TRACE"
    )
    parser.add_argument("--scale", type=float, help="of a trace's lengths; to the drawn mix's when not given")
    parser.add_argument("--requests", type=int, default=100, help="of each mix")
    parser.add_argument("--load", type=float, default=0.9, help="of what the plain one can do")
    parser.add_argument("--rounds", type=int, default=2, help="pairs of replays")
    parser.add_argument(
        "--arena-tokens", type=int, default=ARENA_TOKENS, help="for whose keys and values there is room"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads that compute, for both")
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".bench", help="where the model is kept")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw what the last round gave, as SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--small", action="store_true", help="a tiny model, few requests: shows that it works"
    )
    options = parser.parse_args()
    if options.small:
        options.requests, options.rounds = 10, 1
    return options


def main() -> None:
    options = parse_options()
    enter_own_mounts("bench.mixed")
    options.dir.mkdir(parents=True, exist_ok=True)
    print(host(), flush=True)
    with (
        tempfile.TemporaryDirectory(dir=options.dir, prefix="run-") as folder,
        huge_tmpfs(Path(folder) / "huge", _ROOM) as huge_pages,
    ):
        place = ("--weights-dir", str(huge_pages)) if huge_pages else ()
        pairs = asyncio.run(measure(options, Path(folder), place))
    found = list(figures(pairs))
    print(*found, sep="\n")
    if options.plots:
        write_plots(options.plots, {name: (each[-1].fifo, each[-1].ours) for name, each in pairs.items()})
    if options.json:
        write_figures(options.json, found)


if __name__ == "__main__":
    main()
