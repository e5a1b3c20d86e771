"""The weight file of one tensor-parallel rank: its header, and which bytes of the whole file go where in it."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import Storage, TensorEntry, TensorSpec
from services.common.checkpoint.shard_plan import Share, check_divisible, share_of


class Piece(NamedTuple):
    """Runs of equal length that are copied: evenly spaced where they come from, back to back where they go.

    Attributes:
        source: Of the first run, from the start of the whole file.
        target: Of the first run, from the start of the rank's file.
        run_bytes: Of each run.
        stride_bytes: From start to start in the whole file.
        runs: How many.
    """

    source: int
    target: int
    run_bytes: int
    stride_bytes: int
    runs: int


class Move(NamedTuple):
    """A rank's part of one tensor, and where its first byte goes in the rank's file."""

    entry: TensorEntry
    share: Share
    target: int

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """What of it lies from `begin` up to `end` in the whole file: runs that are cut off there, and whole ones."""
        share = self.share
        first = max(0, (begin - share.offset - share.run_bytes) // share.stride_bytes + 1)
        last = min(share.runs, -((share.offset - end) // share.stride_bytes)) - 1
        if first > last:
            return
        cut_off = [run for run in sorted({first, last}) if not self._is_whole(run, begin, end)]
        whole_first, whole_last = first + (first in cut_off), last - (last in cut_off)
        if whole_first <= whole_last:
            yield self._runs(whole_first, whole_last - whole_first + 1)
        for run in cut_off:
            yield self._runs(run, 1, begin, end)

    def _is_whole(self, run: int, begin: int, end: int) -> bool:
        start = self.share.offset + run * self.share.stride_bytes
        return begin <= start and start + self.share.run_bytes <= end

    def _runs(self, first: int, count: int, begin: int = 0, end: int | None = None) -> Piece:
        share = self.share
        start = share.offset + first * share.stride_bytes
        skipped = max(0, begin - start)
        run_bytes = share.run_bytes if end is None else min(start + share.run_bytes, end) - start
        target = self.target + first * share.run_bytes + skipped
        return Piece(start + skipped, target, run_bytes - skipped, share.stride_bytes, count)

    def blocks(self, data_offset: int) -> Iterator[int]:
        """The digest blocks of the whole file that hold some of it, rising, perhaps more than once."""
        share = self.share
        last = share.offset + (share.runs - 1) * share.stride_bytes + share.run_bytes - 1
        if share.stride_bytes <= BLOCK_BYTES:  # no block lies between two runs
            yield from range(_block(share.offset, data_offset), _block(last, data_offset) + 1)
            return
        for begin, end in share.ranges:
            yield from range(_block(begin, data_offset), _block(end - 1, data_offset) + 1)


def _block(position: int, data_offset: int) -> int:
    return (position - data_offset) // BLOCK_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class RankFile:
    """What a rank's file is made of.

    Attributes:
        header: Its own: the tensors are the rank's parts, divided no further; the digests are zero as yet.
        moves: In the order of the whole file's tensors.
    """

    header: Header
    moves: tuple[Move, ...]

    @classmethod
    def plan(cls, whole: Header, rank: int, ranks: int) -> RankFile:
        """Plans the file of one of so many ranks.

        Raises:
            ValueError: A tensor cannot be divided so, or there is no such rank.
        """
        entries = whole.layout.entries
        check_divisible(entries, Storage(whole.storage.block_rows, ranks))
        shares = [share_of(entry, rank, ranks) for entry in entries]
        specs = [_spec(entry, share) for entry, share in zip(entries, shares, strict=True)]
        header = Header.lay_out(specs, whole.architecture)
        targets = header.layout.entries
        moves = [Move(*each) for each in zip(entries, shares, (t.offset for t in targets), strict=True)]
        return cls(header, tuple(moves))

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """What of the rank's parts lies from `begin` up to `end` in the whole file."""
        first = bisect.bisect_right(self.moves, begin, key=lambda move: move.entry.end)
        last = bisect.bisect_left(self.moves, end, key=lambda move: move.entry.offset)
        for move in self.moves[first:last]:
            yield from move.pieces(begin, end)


def blocks_of(files: Iterable[RankFile], whole: Header) -> tuple[int, ...]:
    """The digest blocks of the whole file that some of the ranks need, rising, each once."""
    moves = (move for file in files for move in file.moves)
    return tuple(sorted({block for move in moves for block in move.blocks(whole.data_offset)}))


def _spec(entry: TensorEntry, share: Share) -> TensorSpec:
    return TensorSpec(
        name=entry.name,
        dtype=entry.dtype,
        shape=share.shape,
        group=entry.group,
        shard=entry.shard,
        quantisation=entry.quantisation,
    )
