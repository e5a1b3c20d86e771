"""The pool of key and value blocks: what lending costs, and how much of what is lent holds nothing.

Time is measured beside a plain free list, in turns, on the same requests: 32 at a time, each with its prompt's blocks,
then block by block to its end. Fragmentation is that of fixed blocks of 16, 64 and 256 tokens, and of ours, on the seed
mix and on the trace that $HALOGEN_TRACE names (columns ContextTokens, GeneratedTokens).

    HALOGEN_TRACE=trace.csv python -m bench.kv_pool --rounds 9 --json figures.json
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.figure import Figure, write_figures
from bench.free_list import FreeBlocks, FreeList
from bench.kv_traffic import BLOCK_BYTES, BLOCK_TOKENS, Asked, Blocks, Traffic, seed_mix, trace
from services.engine.block_pool import BlockPool
from services.engine.reservation import Reservation

ARENA_BLOCKS: Final = 8192
CONCURRENT: Final = 32
KINDS: Final = {
    "fixed, 16 tokens": Blocks(16),
    "fixed, 64 tokens": Blocks(64),
    "fixed, 256 tokens": Blocks(256),
    "by length": Blocks(),
}
OURS: Final = "by length"
MOST_UNUSED: Final = 8.0  # per cent


def lend(pool: BlockPool | FreeList, asked: Sequence[Asked]) -> float:
    """Seconds of a core that lending takes for all of `asked`, with as many at a time as usual."""
    running: collections.deque[Reservation | FreeBlocks] = collections.deque()
    begin = time.thread_time()
    for each in asked:
        if len(running) == CONCURRENT:
            running.popleft().close()
        running.append(_one(pool, each))
    while running:
        running.popleft().close()
    return time.thread_time() - begin


def _one(pool: BlockPool | FreeList, asked: Asked) -> Reservation | FreeBlocks:
    first, last = -(-asked.prompt // BLOCK_TOKENS), -(-sum(asked) // BLOCK_TOKENS)
    lent = pool.reserve(BLOCK_BYTES, first)
    for _ in range(first):
        lent.take()
    for _ in range(last - first):
        lent.grow(1)
        lent.take()
    return lent


def times(asked: Sequence[Asked], rounds: int) -> list[Figure]:
    """What a block costs, in turns."""
    blocks = sum(-(-sum(each) // BLOCK_TOKENS) for each in asked)
    pairs = [
        (lend(BlockPool(ARENA_BLOCKS * BLOCK_BYTES), asked), lend(FreeList(ARENA_BLOCKS), asked))
        for _ in range(rounds)
    ]
    ours, plain = (statistics.median(each) / blocks * 1e6 for each in zip(*pairs, strict=True))
    ratio = statistics.median(pool / free for pool, free in pairs)
    print(f"a block lent and given back: {ours:.2f} us, by a plain free list {plain:.2f} us")
    return [
        Figure(name="kv_block_us", value=ours, unit="us", better="lower"),
        Figure(name="kv_pool_vs_free_list", value=ratio, unit="x", better="lower"),
    ]


def unused(name: str, asked: Sequence[Asked]) -> Figure:
    """How much of what is lent holds nothing, with all kinds of blocks printed beside ours."""
    figure = f"kv_unused_{name}"
    if not asked:
        return Figure(name=figure, value=None, unit="%", skipped="HALOGEN_TRACE names no trace")
    shares = {kind: 100 * share for kind, share in _shares(asked)}
    for kind, share in shares.items():
        print(f"{name:10} {kind:18} {share:5.1f} % of what is lent holds nothing")
    return Figure(name=figure, value=shares[OURS], unit="%", goal=MOST_UNUSED, better="lower")


def _shares(asked: Sequence[Asked]) -> Iterator[tuple[str, float]]:
    for kind, blocks in KINDS.items():
        traffic = Traffic(blocks, asked, concurrent=CONCURRENT, arena_blocks=ARENA_BLOCKS)
        yield kind, traffic.run()
        traffic.pool.check_spans()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mix = seed_mix(options.requests)
    figures = [
        *times(mix, options.rounds),
        unused("seed_mix", mix),
        unused("trace", trace(options.requests)),
    ]
    for figure in figures:
        print(figure)
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
