"""The native kernels on packed weights beside the same on weights row after row, and beside memory's speed.

``python -m bench.kernels small medium``: steps of the whole decoder alone, no engine around them; random weights. In
every round both layouts compute the same step, one after the other, each after a pass over memory by the same threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Final, NamedTuple, get_args

import numpy as np
import torch

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


def measure(
    name: str, cases: list[Case], rounds: int, round_s: float, team: Team, kv_dtype: KvChoice
) -> None:
    shape, kv = SHAPES[name], KvFormat.of(SHAPES[name], kv_dtype, DType.BF16)
    made = {layout: random_weights(shape, packed=layout == "packed") for layout in ("rows", "packed")}
    subjects = {layout: Subject(shape, weights, kv, team) for layout, weights in made.items()}
    memory = in_huge_pages(np.ones(_PROBE_BYTES // 2, np.uint16))
    nbytes = weight_bytes(made["packed"])
    print(f"{name}: {nbytes / 1e6:.0f} MB of weights a step, keys and values in {kv.dtype}")
    for case in cases:
        took: dict[str, list[float]] = {"rows": [], "packed": [], "probe": []}
        for _ in range(rounds):
            for layout, subject in subjects.items():
                took["probe"].append(seconds(lambda: team.read(memory), 0))
                took[layout].append(seconds(lambda s=subject: s.step(case), round_s))  # type: ignore[misc]
        tell(case, took, nbytes)


def tell(case: Case, took: dict[str, list[float]], nbytes: int) -> None:
    """One line: medians, and the packed layout's share of memory's speed, round by round."""
    middle = {name: statistics.median(found) for name, found in took.items()}
    tokens = case.sequences * case.new
    share = statistics.median(
        nbytes / packed / (_PROBE_BYTES / probe)
        for packed, probe in zip(took["packed"], took["probe"][1::2], strict=True)
    )
    gain = statistics.median(a / b for a, b in zip(took["rows"], took["packed"], strict=True))
    print(
        f"{case.name:14} rows {middle['rows'] * 1e3:8.2f} ms {tokens / middle['rows']:8.0f} tokens/s   "
        f"packed {middle['packed'] * 1e3:8.2f} ms {tokens / middle['packed']:8.0f} tokens/s   x {gain:4.2f}   "
        f"probe {_PROBE_BYTES / middle['probe'] / 1e9:5.1f} GB/s, weights at {share:4.0%} of it"
    )


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
    asked = parser.parse_args()
    team = Team(asked.kernels, asked.threads)
    for name in asked.shapes:
        measure(
            name, [CASES[case] for case in asked.cases], asked.rounds, asked.round_s, team, asked.kv_dtype
        )


if __name__ == "__main__":
    main()
