"""Tokens per second of our engine beside vLLM's and llama.cpp's, by themselves and as servers.

Models of random weights, made on the spot: small has SmolLM2-135M's shape, medium TinyLlama-1.1B's, in bf16. Everybody
computes with the same number of threads, in a process of its own, one at a time, in turns (A B C A B C), with a look
at the memory's bandwidth around every turn; all are kept running and have warmed up. Greedy; no answer ends early.

    python -m bench.engine --sections small --pairs 5 --record turns.jsonl --json figures.json

Sections can be run one by one, and pair by pair: what --record has from earlier runs counts too. bench/setup_peers.sh
makes the peers' environments; whoever is not there is left out, and its figures say so.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from pathlib import Path
from typing import Final

from bench import engine_model
from bench.engine_contenders import Contenders
from bench.engine_figures import figures, tables
from bench.engine_names import LLAMACPP, VLLM
from bench.engine_section import SECTIONS, Section, session
from bench.figure import Figure, write_figures
from bench.huge_tmpfs import enter_own_mounts, huge_tmpfs
from bench.loader import host
from bench.peer_home import PeerHome
from bench.program import REPOSITORY
from bench.turn import Turns

_ROOM: Final = 8 << 30  # of the tmpfs: every model, as it is stored and as it is packed
_SERVED: Final = "served"
_TINY: Final = "tiny"
_SMALL: Final = {"small": ("decode128", "mix8"), "served": ("mix8",)}


class Bench:
    """The measurements, one section after the other.

    Args:
        options: The command line's.
        work: For files of this run.
        place: Our loaders' flags that say where they put weights.

    Attributes:
        turns: All that were taken.
        starts: How long servers took to start.
    """

    def __init__(self, options: argparse.Namespace, work: Path, place: tuple[str, ...]) -> None:
        self._options = options
        self._peers = PeerHome.find(options.peers)
        self._work = work
        self._place = place
        self.turns = Turns(options.record, options.most_others)
        self.starts: list[Figure] = []
        self._left_out = self._missing()

    def _missing(self) -> list[str]:
        """Peers that cannot be run, or shall not be."""
        missing = []
        for name in (VLLM, LLAMACPP):
            obstacle = "left out" if name in self._options.without else self._peers.obstacle(name)
            if obstacle:
                print(f"without {name}: {obstacle}", flush=True)
                missing.append(name)
        return missing

    async def measure(self) -> None:
        for name in self._options.sections:
            await self._measure(self._cut(SECTIONS[name]))

    def _cut(self, section: Section) -> Section:
        """The part of it that is wanted."""
        if self._options.small:
            return section._replace(shape=_TINY, workloads=_SMALL[section.name])
        wanted = self._options.workloads
        kept = tuple(each for each in section.workloads if not wanted or each in wanted)
        return section._replace(workloads=kept)

    async def _measure(self, section: Section) -> None:
        if not (section.workloads and self._options.pairs):
            return
        everybody = self._everybody(section.shape)
        async with session(section, everybody, self.turns, self._left_out) as running:
            if section.name == _SERVED:
                self.starts = running.starts()
            await running.warm()
            for number in range(self._options.pairs):
                await running.pair(1 + number)

    def _everybody(self, shape: str) -> Contenders:
        return Contenders(
            model=engine_model.made(self._options.dir, shape),
            peers=self._peers,
            place=self._place,
            threads=self._options.threads,
            work=self._work,
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = tuple(SECTIONS)
    parser.add_argument(
        "--sections", nargs="+", choices=usual, default=usual, metavar="NAME", help=f"of {usual}"
    )
    parser.add_argument("--workloads", nargs="+", default=(), metavar="NAME", help="these only")
    parser.add_argument(
        "--pairs", type=int, default=5, help="turns of everybody; 0 only tells what --record has"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads that compute, for everybody")
    parser.add_argument("--without", nargs="+", default=(), metavar="PEER", help=f"of {VLLM}, {LLAMACPP}")
    parser.add_argument(
        "--peers", type=Path, help="where bench/setup_peers.sh has put them; or $HALOGEN_PEERS"
    )
    parser.add_argument(
        "--dir", type=Path, default=REPOSITORY / ".bench", help="where models are kept (8 GB, made once)"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="add every turn there; all that it has counts"
    )
    parser.add_argument(
        "--most-others", type=float, default=0.2, metavar="CORES",
        help="a turn beside which others kept more cores busy does not count",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--small", action="store_true", help="a tiny model, one pair, without vLLM: shows that it works"
    )
    options = parser.parse_args()
    if options.small:
        options.sections = [name for name in options.sections if name in _SMALL]
        options.pairs, options.record, options.most_others = 1, None, math.inf
        options.without = (*options.without, VLLM)
    return options


def main() -> None:
    options = parse_options()
    enter_own_mounts("bench.engine")
    options.dir.mkdir(parents=True, exist_ok=True)
    print(host(), flush=True)
    with (
        tempfile.TemporaryDirectory(dir=options.dir, prefix="run-") as folder,
        huge_tmpfs(Path(folder) / "huge", _ROOM) as huge_pages,
    ):
        place = ("--weights-dir", str(huge_pages)) if huge_pages else ()
        bench = Bench(options, Path(folder), place)
        asyncio.run(bench.measure())
    print(*tables(bench.turns), "", sep="\n")
    if bench.turns.disturbed:
        print(f"{bench.turns.disturbed} turns beside busy others do not count", end="\n\n")
    found = [*figures(bench.turns, engine_model.step_bytes("medium")), *bench.starts]
    print(*found, sep="\n")
    if options.json:
        write_figures(options.json, found)


if __name__ == "__main__":
    main()
