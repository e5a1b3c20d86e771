"""Speed and memory of the converter, beside a plain write of the same bytes.

The source is a random Llama of TinyLlama's shape (1.1 billion weights in bf16, 2.2 GB of safetensors), in the page
cache. In turns: the artifact's weights are written from memory, 4 MiB at a time, and synced; the converter runs as a
process of its own, its start, its reading and all its syncs included.

    make bench BENCH=convert        or        python -m bench.convert --rounds 5 --json figures.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import checkpoints
from bench.checkpoints import SMALL, TINY_LLAMA, Shape
from bench.figure import Figure, write_figures
from bench.program import REPOSITORY

MIB: Final = 1 << 20
PIECE_BYTES: Final = 4 * MIB
ROOM_BYTES: Final = 256 * MIB  # what the converter may take beyond twice the largest tensor
CONVERTER: Final = """
import re, sys
from services.loader.convert import main
status = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""  # the kernel's own figure of a process counts what its parent held as well


class Run(NamedTuple):
    """What a plain write took, and what a conversion took and held; `nbytes` were written by either."""

    nbytes: int
    plain_s: float
    convert_s: float
    peak_bytes: int

    @property
    def ratio(self) -> float:
        return self.plain_s / self.convert_s

    def __str__(self) -> str:
        plain, ours = (self.nbytes / seconds / 1e9 for seconds in (self.plain_s, self.convert_s))
        peak = f"peak {self.peak_bytes / MIB:.0f} MiB"
        return f"  plain write {plain:5.2f} GB/s   convert {ours:5.2f} GB/s   {self.ratio:5.2f} x   {peak}"


def plain_write(path: Path, content: memoryview) -> float:
    """Seconds until the content is on disk."""
    os.sync()  # what others left to be written is not ours to pay for
    begun = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for begin in range(0, len(content), PIECE_BYTES):
            file.write(content[begin : begin + PIECE_BYTES])
        os.fsync(file.fileno())
    took_s = time.perf_counter() - begun
    path.unlink()
    return took_s


def convert(source: Path, artifact: Path) -> tuple[float, int]:
    """Seconds from the process's start to its end, and the most bytes that it held."""
    os.sync()
    command = [sys.executable, "-c", CONVERTER, str(source), str(artifact), "--progress", "none"]
    begun = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    took_s = time.perf_counter() - begun
    if ended.returncode:
        raise SystemExit(f"the converter failed: {ended.stderr}")
    return took_s, int(ended.stdout.splitlines()[-1]) << 10


def measure(folder: Path, shape: Shape, rounds: int) -> list[Run]:
    source, artifact = checkpoints.source(folder / "source", shape, seed=0), folder / "artifact"
    convert(source, artifact)  # which reads the source into the page cache
    content = memoryview((artifact / "model.halogen").read_bytes())
    runs = []
    for _ in range(rounds):
        shutil.rmtree(artifact)
        plain_s = plain_write(folder / "plain", content)
        runs.append(Run(len(content), plain_s, *convert(source, artifact)))
        print(runs[-1], flush=True)
    return runs


def figures(shape: Shape, runs: Sequence[Run]) -> list[Figure]:
    most_bytes = 2 * max(spec.nbytes for spec in shape.specs) + ROOM_BYTES
    ratio = statistics.median(run.ratio for run in runs)
    peak = max(run.peak_bytes for run in runs) / MIB
    return [
        Figure(name="convert_vs_write", value=ratio, unit="x", goal=0.6),
        Figure(name="convert_peak", value=peak, unit="MiB", goal=most_bytes / MIB, better="lower"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="pairs of runs; the median of their ratios counts"
    )
    parser.add_argument("--dir", type=Path, default=REPOSITORY, help="where 7 GB may lie meanwhile")
    parser.add_argument("--small", action="store_true", help="64 MB, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    shape = SMALL if options.small else TINY_LLAMA
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".bench-") as folder:
        found = figures(shape, measure(Path(folder), shape, options.rounds))
    print(*found, sep="\n")
    if options.json:
        write_figures(options.json, found)


if __name__ == "__main__":
    main()
