"""Requests as lengths, and a pool under them: what of the memory that is lent holds nothing."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services.engine.block_pool import BlockPool
from services.engine.extent import growth
from services.engine.reservation import Reservation

BLOCK_TOKENS: Final = 16
BLOCK_BYTES: Final = 368_640  # SmolLM2-135M in bfloat16
_SPARE: Final = 256
_TICK: Final = 4  # tokens that every running answer gets at once
_TRACE: Final = "HALOGEN_TRACE"  # names a file with the columns ContextTokens and GeneratedTokens


class Asked(NamedTuple):
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


def seed_mix(count: int) -> list[Asked]:
    """7 of 10 short (200 and 100 tokens), 3 of 10 long (1,800 and 512)."""
    chance = random.Random(6)
    return [Asked(200, 100) if chance.random() < 0.7 else Asked(1800, 512) for _ in range(count)]


def trace(count: int) -> list[Asked]:
    """The first requests of the trace that $HALOGEN_TRACE names, or none."""
    path = os.environ.get(_TRACE)
    if not path:
        return []
    with Path(path).open(newline="") as file:
        rows = csv.DictReader(file)
        asked = [Asked(int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))) for row in rows]
    return asked[:count]


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """How blocks are lent: all of one size, or as the engine does.

    Attributes:
        fixed: Tokens of every block; 0 for extents chosen by length.
    """

    fixed: int = 0

    @property
    def tokens(self) -> int:
        return self.fixed or BLOCK_TOKENS

    @property
    def bytes(self) -> int:
        return BLOCK_BYTES * self.tokens // BLOCK_TOKENS

    def more(self, missing: int, expected_blocks: int) -> int:
        """How many blocks a running sequence takes at once that cannot do without `missing`."""
        return missing if self.fixed else growth(missing, expected_blocks)


@dataclasses.dataclass(slots=True)
class _Running:
    asked: Asked
    reservation: Reservation
    stored: int

    @property
    def promised(self) -> int:
        """Tokens that it may come to, and those of a block that is not full."""
        return sum(self.asked) + _SPARE

    @property
    def end(self) -> int:
        return self.asked.prompt + self.asked.answer - 1  # the last token is never stored


class Traffic:
    """So many requests at a time, in order, until none is left.

    Args:
        blocks: How they are lent.
        asked: The requests.
        concurrent: So many run at a time, as far as there is room.
        arena_blocks: Size of the arena, in blocks of 16 tokens.
    """

    def __init__(self, blocks: Blocks, asked: Sequence[Asked], *, concurrent: int, arena_blocks: int) -> None:
        self.pool = BlockPool(arena_blocks * BLOCK_BYTES)
        self._blocks = blocks
        self._waiting = list(reversed(asked))
        self._concurrent = concurrent
        self._running: list[_Running] = []

    def run(self) -> float:
        """The share of what is lent that holds nothing, averaged over time."""
        return statistics.fmean(self._ticks())

    def _ticks(self) -> Iterator[float]:
        while self._waiting:
            self._admit()
            self._decode()
            if self._running:
                yield self._unused()

    def _admit(self) -> None:
        """As many as can certainly grow to their ends together."""
        while self._waiting and len(self._running) < self._concurrent:
            promised = sum(each.promised for each in self._running) + sum(self._waiting[-1]) + _SPARE
            if promised * BLOCK_BYTES // BLOCK_TOKENS > self.pool.total_bytes:
                return
            asked = self._waiting.pop()
            blocks = -(-asked.prompt // self._blocks.tokens)
            self._running.append(_Running(asked, self.pool.reserve(self._blocks.bytes, blocks), asked.prompt))

    def _decode(self) -> None:
        for each in self._running:
            each.stored = min(each.end, each.stored + _TICK)
            needed = -(-each.stored // self._blocks.tokens)
            if (missing := needed - each.reservation.blocks) > 0:
                self._grow(each, missing)
        for each in [each for each in self._running if each.stored == each.end]:
            self._running.remove(each)
            each.reservation.close()

    def _grow(self, each: _Running, missing: int) -> None:
        more = self._blocks.more(missing, -(-each.end // self._blocks.tokens))
        for blocks in (more, missing):
            if self.pool.can_grow(each.reservation, blocks):
                each.reservation.grow(blocks)
                return
        raise RuntimeError("the arena is too small for so many at a time")

    def _unused(self) -> float:
        lent = sum(each.reservation.total_bytes for each in self._running)
        stored = sum(each.stored for each in self._running) * BLOCK_BYTES / BLOCK_TOKENS
        return 1 - stored / lent
