"""The native kernels on packed weights beside the same on weights row after row, and beside memory's speed.

``python -m bench.kernels small medium``: steps of the whole decoder alone, no engine around them; random weights. In
every round both layouts compute the same step, one after the other, each after a pass over memory by the same threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np
import torch

from bench.figure import Figure, write_figures
from bench.random_llama import SHAPES, in_huge_pages, random_weights
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.kv import BLOCK_TOKENS
from services.engine.kernels.cpu.library import INSTRUCTION_SETS
from services.engine.kernels.cpu.native_llama import NativeLlama
from services.engine.kernels.cpu.team import Team
from services.engine.kv_format import KvChoice, KvFormat
from services.engine.model.llama_weights import LlamaWeights
from services.engine.ragged import Ragged

_CONTEXT: Final = 128
_MAX_TOKENS: Final = 2304
_PROBE_BYTES: Final = 512 << 20


class Case(NamedTuple):
    """A step: so many sequences, each with so many new tokens behind so many old ones."""

    name: str
    sequences: int
    new: int
    old: int


CASES: Final = {
    case.name: case
    for case in (
        Case("decode1", 1, 1, _CONTEXT),
        Case("decode1@1024", 1, 1, 1024),
        Case("decode4", 4, 1, _CONTEXT),
        Case("decode8", 8, 1, _CONTEXT),
        Case("decode16", 16, 1, _CONTEXT),
        Case("decode32", 32, 1, _CONTEXT),
        Case("prefill64", 1, 64, 0),
        Case("prefill128", 1, 128, 0),
        Case("prefill256", 1, 256, 0),
        Case("prefill512", 1, 512, 0),
        Case("prefill2048", 4, 512, 0),
        Case("late512", 1, 512, 1536),
    )
}


class Effort(NamedTuple):
    """How many rounds, and how long each takes at least for a layout."""

    rounds: int
    round_s: float


def step_of(case: Case) -> Ragged:
    """The step; every sequence has blocks of its own."""
    blocks = -(-(case.old + case.new) // BLOCK_TOKENS)
    positions = np.arange(case.old, case.old + case.new, dtype=np.int32)
    rows = np.arange(case.sequences + 1, dtype=np.int32) * case.new
    return Ragged(
        token_ids=np.arange(case.sequences * case.new, dtype=np.int32) * 7 % 512,
        positions=np.tile(positions, case.sequences),
        rows=rows,
        tables=np.arange(case.sequences * blocks, dtype=np.int32).reshape(case.sequences, blocks),
        sample_rows=rows[1:] - 1,
    )


class Subject:
    """One decoder over blocks of its own."""

    def __init__(self, shape: Architecture, weights: LlamaWeights, kv: KvFormat, team: Team) -> None:
        self._decoder = NativeLlama(shape, weights, kv, _MAX_TOKENS, team)
        blocks = max(case.sequences * (case.old + case.new) for case in CASES.values()) // BLOCK_TOKENS + 40
        self._blocks = in_huge_pages(np.zeros((blocks, kv.block_bytes // 2), np.uint16)).view(torch.uint8)

    def step(self, case: Case) -> None:
        self._decoder.forward(step_of(case), self._blocks)


def seconds(work: Callable[[], None], at_least_s: float) -> float:
    """Of one call, over as many as take that long."""
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < at_least_s or not calls:
        work()
        calls += 1
    return spent / calls


def weight_bytes(weights: LlamaWeights) -> int:
    """What a step of one token reads: all but the embedding, of which it reads a row."""
    matrices = [matrix for w in weights.layers for matrix in (w.qkv, w.output, w.gate_up, w.down)]
    return sum(matrix.nbytes for matrix in (*matrices, weights.head))


class Times(NamedTuple):
    """Seconds, round by round: of a step on weights row after row, of one on packed ones, of a pass over memory."""

    rows: list[float]
    packed: list[float]
    probe: list[float]


def measure(
    case: Case, rows: Subject, packed: Subject, team: Team, memory: torch.Tensor, effort: Effort
) -> Times:
    times = Times([], [], [])
    for _ in range(effort.rounds):
        times.rows.append(seconds(lambda: rows.step(case), effort.round_s))
        times.probe.append(seconds(lambda: team.read(memory), 0))
        times.packed.append(seconds(lambda: packed.step(case), effort.round_s))
    return times


def told(shape: str, case: Case, times: Times, nbytes: int) -> Figure:
    """How many times as fast packed ones are, by medians of what each round says; prints more."""
    rows, packed, probe = map(statistics.median, times)
    tokens = case.sequences * case.new
    share = statistics.median(
        nbytes / step / (_PROBE_BYTES / read) for step, read in zip(times.packed, times.probe, strict=True)
    )
    gain = statistics.median(a / b for a, b in zip(times.rows, times.packed, strict=True))
    print(
        f"{case.name:14} rows {rows * 1e3:8.2f} ms {tokens / rows:8.0f} tokens/s   "
        f"packed {packed * 1e3:8.2f} ms {tokens / packed:8.0f} tokens/s   x {gain:4.2f}   "
        f"probe {_PROBE_BYTES / probe / 1e9:5.1f} GB/s, weights at {share:4.0%} of it"
    )
    return Figure(name=f"packed_{shape}_{case.name}_vs_rows", value=gain, unit="x")


def compare(shape: str, cases: list[Case], effort: Effort, team: Team, kv_dtype: KvChoice) -> list[Figure]:
    """All cases of one shape."""
    kv = KvFormat.of(SHAPES[shape], kv_dtype, DType.BF16)
    weights = [random_weights(SHAPES[shape], packed=packed) for packed in (False, True)]
    rows, packed = (Subject(SHAPES[shape], each, kv, team) for each in weights)
    memory, nbytes = in_huge_pages(np.ones(_PROBE_BYTES // 2, np.uint16)), weight_bytes(weights[1])
    print(f"{shape}: {nbytes / 1e6:.0f} MB of weights a step, keys and values in {kv.dtype}")
    return [told(shape, case, measure(case, rows, packed, team, memory, effort), nbytes) for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=["small"], choices=SHAPES)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-s", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", choices=INSTRUCTION_SETS, default=next(iter(INSTRUCTION_SETS)))
    parser.add_argument("--kv-dtype", choices=get_args(KvChoice), default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    team, effort = Team(asked.kernels, asked.threads), Effort(asked.rounds, asked.round_s)
    cases = [CASES[case] for case in asked.cases]
    figures = [
        figure for shape in asked.shapes for figure in compare(shape, cases, effort, team, asked.kv_dtype)
    ]
    if asked.json:
        write_figures(asked.json, figures)


if __name__ == "__main__":
    main()
