"""What it takes to choose a token: microseconds of a core for each of 64 rows of logits.

``python -m bench.choosing``: normally distributed logits of a large vocabulary, of standard deviation 1, 3 and 8, of which
top_p keeps 28,920, 706 and 7.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.figure import Figure, write_figures
from services.engine.sampling import Draw, Floats, choose
from services.engine.sequence import Sampling

_GREEDY: Final = Sampling(max_tokens=1)
_TOP_P: Final = Sampling(max_tokens=1, temperature=0.7, top_p=0.95)


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to choose, from logits of that standard deviation."""

    name: str
    sampling: Sampling
    spread: float = 1.0


CASES: Final = (
    Case("greedy", _GREEDY),
    Case("temperature", Sampling(max_tokens=1, temperature=1.0)),
    Case("top_k", Sampling(max_tokens=1, temperature=0.7, top_k=50)),
    Case("top_p_keeps_most", _TOP_P),
    Case("top_p_keeps_some", _TOP_P, 3.0),
    Case("top_p_keeps_few", _TOP_P, 8.0),
    Case("greedy_logprobs", dataclasses.replace(_GREEDY, logprobs=True)),
)


def row_us(case: Case, logits: Floats, repeats: int) -> float:
    """Of one row: the best of the times that all rows were chosen from."""
    draws = [Draw(case.sampling, position) for position in range(len(logits))]
    times = []
    for _ in range(repeats):
        began_s = time.thread_time()
        choose(logits, draws)
        times.append(time.thread_time() - began_s)
    return min(times) / len(logits) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    chance = np.random.default_rng(6)
    normal = chance.standard_normal((options.rows, options.vocabulary), np.float32)
    figures = [
        Figure(
            name=f"choose_{case.name}_us",
            value=row_us(case, normal * np.float32(case.spread), options.repeats),
            unit="us",
            better="lower",
        )
        for case in CASES
    ]
    print(*figures, sep="\n")
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
