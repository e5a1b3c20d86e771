"""Which bytes of a weight file each tensor-parallel rank has, and what is read so that each is read once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from services.common.checkpoint.layout import Shard, Storage, TensorEntry
from services.common.checkpoint.quantisation import scale_names

_AXIS: Final = {Shard.ROWS: 0, Shard.COLUMNS: 1}


class ByteRange(NamedTuple):
    """From `begin` up to, not including, `end`; counted from the start of the file."""

    begin: int
    end: int


class Share(NamedTuple):
    """A rank's part of a tensor: `runs` runs of `run_bytes`, `stride_bytes` from start to start.

    Attributes:
        shape: Of the part.
        offset: Of the first run, from the start of the file.
    """

    shape: tuple[int, ...]
    offset: int
    run_bytes: int
    stride_bytes: int
    runs: int

    @property
    def ranges(self) -> Iterator[ByteRange]:
        for index in range(self.runs):
            begin = self.offset + index * self.stride_bytes
            yield ByteRange(begin, begin + self.run_bytes)


class TensorReads(NamedTuple):
    """What is read of a tensor, and who gets which part of it.

    Attributes:
        shares: By rank.
        reads: Rising and apart from each other: all that the shares consist of, each byte once.
    """

    entry: TensorEntry
    shares: Mapping[int, Share]
    reads: tuple[ByteRange, ...]


def plan_reads(
    entries: Sequence[TensorEntry], storage: Storage, ranks: Iterable[int]
) -> tuple[TensorReads, ...]:
    """Plans the reads of the ranks that share a disk.

    Args:
        entries: The file's tensors.
        storage: How many ranks there are, and how many rows stay together.
        ranks: Those that read here.

    Raises:
        ValueError: A tensor cannot be divided so, or there is no such rank.
    """
    check_divisible(entries, storage)
    ranks = tuple(ranks)
    return tuple(_tensor_reads(entry, storage.tensor_parallel_size, ranks) for entry in entries)


def share_of(entry: TensorEntry, rank: int, ranks: int) -> Share:
    """What `rank` has of a tensor that `check_divisible` lets pass.

    Raises:
        ValueError: There is no such rank.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks}")
    shape = shape_of_share(entry.shape, entry.shard, ranks)
    if entry.shard is Shard.REPLICATED or ranks == 1:
        return Share(shape, entry.offset, entry.nbytes, entry.nbytes, 1)
    run_bytes = entry.nbytes // ranks
    if entry.shard is Shard.ROWS:
        return Share(shape, entry.offset + rank * run_bytes, run_bytes, run_bytes, 1)
    rows = entry.shape[0]
    return Share(
        shape, entry.offset + rank * (run_bytes // rows), run_bytes // rows, entry.nbytes // rows, rows
    )


def shape_of_share(shape: tuple[int, ...], shard: Shard, ranks: int) -> tuple[int, ...]:
    axis = _AXIS.get(shard)
    return tuple(size // ranks if at == axis else size for at, size in enumerate(shape))


def check_divisible(entries: Iterable[TensorEntry], storage: Storage) -> None:
    """Raises ValueError, naming the tensor, unless every one can be divided as `storage` says."""
    tensors = {entry.name: entry for entry in entries}
    scales = scale_names(tuple(tensors.values()))
    for entry in tensors.values():
        if _AXIS.get(entry.shard, -1) >= len(entry.shape):
            raise ValueError(f"tensor {entry.name} has no {entry.shard} to be divided along")
        if storage.tensor_parallel_size > 1 and entry.shard is not Shard.REPLICATED:
            _check_shares(
                entry, storage.tensor_parallel_size, 1 if entry.name in scales else storage.block_rows
            )
        if storage.tensor_parallel_size > 1:
            _check_scales(entry, tensors)


def _check_shares(entry: TensorEntry, ranks: int, block_rows: int) -> None:
    axis = _AXIS[entry.shard]
    unit = block_rows if entry.shard is Shard.ROWS else 8 // math.gcd(8, entry.dtype.bits)
    if entry.quantisation is not None and entry.quantisation.block[axis] < entry.shape[axis]:
        unit = math.lcm(unit, entry.quantisation.block[axis])
    if entry.shape[axis] % (ranks * unit):
        raise ValueError(
            f"tensor {entry.name} has {entry.shape[axis]} {entry.shard}, not a multiple of {ranks} ranks x {unit}"
        )


def _check_scales(entry: TensorEntry, tensors: Mapping[str, TensorEntry]) -> None:
    """Scales are divided with what they scale, and not at all where one holds for the whole axis."""
    if entry.quantisation is None:
        return
    axis = _AXIS.get(entry.shard)
    shape = entry.quantisation.shape_of_scales(entry.shape)
    wanted = Shard.REPLICATED if axis is None or shape[axis] == 1 else entry.shard
    for name in entry.quantisation.parameters:
        if tensors[name].shard is not wanted:
            raise ValueError(f"tensor {name} is {tensors[name].shard}, not {wanted} as {entry.name} needs")


def _tensor_reads(entry: TensorEntry, count: int, ranks: tuple[int, ...]) -> TensorReads:
    shares = {rank: share_of(entry, rank, count) for rank in ranks}
    ranges = itertools.chain.from_iterable(share.ranges for share in shares.values())
    return TensorReads(entry, shares, merged(ranges))


def merged(ranges: Iterable[ByteRange]) -> tuple[ByteRange, ...]:
    """The same bytes in the fewest ranges, rising; what touches or overlaps becomes one."""
    result: list[ByteRange] = []
    for begin, end in sorted(ranges):
        if result and begin <= result[-1].end:
            result[-1] = ByteRange(result[-1].begin, max(end, result[-1].end))
        else:
            result.append(ByteRange(begin, end))
    return tuple(result)
