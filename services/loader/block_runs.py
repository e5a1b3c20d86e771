"""Which blocks of a file are asked for in one request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

RUN_BLOCKS: Final = (
    16  # 64 MiB: a round trip is then little of it, and several connections share a file evenly
)


class BlockRun(NamedTuple):
    """Neighbouring blocks, from `first` up to `end`."""

    first: int
    end: int


def plan_runs(missing: Sequence[int], *, ranged: bool) -> tuple[BlockRun, ...]:
    """Covers the missing blocks by runs.

    Args:
        missing: Indices, rising.
        ranged: Whether the store sends parts; where it does not, one run leads over all, whatever lies between.
    """
    if not missing:
        return ()
    if not ranged:
        return (BlockRun(missing[0], missing[-1] + 1),)
    return tuple(_split(missing))


def _split(missing: Sequence[int]) -> Iterator[BlockRun]:
    for _, group in itertools.groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
        neighbours = [index for _, index in group]
        for begin in range(0, len(neighbours), RUN_BLOCKS):
            part = neighbours[begin : begin + RUN_BLOCKS]
            yield BlockRun(part[0], part[-1] + 1)
