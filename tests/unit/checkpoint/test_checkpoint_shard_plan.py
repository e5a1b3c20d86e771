"""Tensor-parallel shares: exactly the right bytes for each rank, and each byte of the disk read once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import Shard, Storage, TensorEntry, TensorSpec, plan
from services.common.checkpoint.quantisation import Quantisation
from services.common.checkpoint.shard_plan import ByteRange, merged, plan_reads, share_of


def entry(
    shard: Shard, shape: tuple[int, ...] = (4, 6), dtype: DType = DType.BF16, *, offset: int = 4096
) -> TensorEntry:
    return TensorEntry(
        name="t",
        dtype=dtype,
        shape=shape,
        offset=offset,
        nbytes=dtype.nbytes(shape),
        group="",
        shard=shard,
    )


@pytest.mark.parametrize(
    ("tensor", "ranks", "rank", "shape", "ranges"),
    [
        (entry(Shard.REPLICATED), 2, 1, (4, 6), [(0, 48)]),
        (entry(Shard.ROWS), 2, 0, (2, 6), [(0, 24)]),
        (entry(Shard.ROWS), 2, 1, (2, 6), [(24, 48)]),
        (entry(Shard.ROWS), 4, 3, (1, 6), [(36, 48)]),
        (entry(Shard.ROWS, (8,)), 4, 2, (2,), [(8, 12)]),
        (entry(Shard.COLUMNS), 1, 0, (4, 6), [(0, 48)]),
        (entry(Shard.COLUMNS), 2, 0, (4, 3), [(0, 6), (12, 18), (24, 30), (36, 42)]),
        (entry(Shard.COLUMNS), 3, 2, (4, 2), [(8, 12), (20, 24), (32, 36), (44, 48)]),
        (entry(Shard.COLUMNS, (2, 8), DType.INT4), 2, 1, (2, 4), [(2, 4), (6, 8)]),
        (entry(Shard.COLUMNS, (2, 4), DType.FP8_E4M3), 2, 0, (2, 2), [(0, 2), (4, 6)]),
    ],
)
def test_a_rank_has_exactly_its_bytes(
    tensor: TensorEntry, ranks: int, rank: int, shape: tuple[int, ...], ranges: list[tuple[int, int]]
) -> None:
    """Rows are one run; columns are a run of every row."""
    share = share_of(tensor, rank, ranks)
    assert shape == share.shape
    assert ranges == [(begin - 4096, end - 4096) for begin, end in share.ranges]


@pytest.mark.parametrize(
    ("shard", "ranks", "reads"),
    [
        (Shard.REPLICATED, (0, 1), [(0, 48)]),
        (Shard.ROWS, (0, 1), [(0, 48)]),
        (Shard.ROWS, (1,), [(24, 48)]),
        (Shard.COLUMNS, (0, 1), [(0, 48)]),
        (Shard.COLUMNS, (1, 0), [(0, 48)]),
        (Shard.COLUMNS, (1,), [(6, 12), (18, 24), (30, 36), (42, 48)]),
    ],
)
def test_what_ranks_of_one_disk_need_is_read_once(
    shard: Shard, ranks: tuple[int, ...], reads: list[tuple[int, int]]
) -> None:
    """Two ranks beside each other are one read, and a replicated tensor is read for both."""
    (planned,) = plan_reads([entry(shard)], Storage(tensor_parallel_size=2), ranks)
    assert reads == [(begin - 4096, end - 4096) for begin, end in planned.reads]
    assert set(ranks) == set(planned.shares)


@given(
    st.sampled_from(Shard),
    st.sampled_from([DType.BF16, DType.FP32, DType.INT8]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_the_shares_put_together_are_the_tensor(
    shard: Shard, dtype: DType, ranks: int, rows: int, columns: int
) -> None:
    """Every element is with the rank that numpy's split gives it, and the reads hold each byte once."""
    shape = (rows * ranks, columns * ranks)
    tensor = entry(shard, shape, dtype, offset=0)
    data = np.arange(tensor.nbytes, dtype=np.uint8).reshape(*shape, -1)
    parts = {Shard.REPLICATED: [data] * ranks, Shard.ROWS: np.split(data, ranks)}
    parts[Shard.COLUMNS] = np.split(data, ranks, 1)
    flat = data.tobytes()
    for rank in range(ranks):
        share = share_of(tensor, rank, ranks)
        assert parts[shard][rank].tobytes() == b"".join(flat[b:e] for b, e in share.ranges)
        assert parts[shard][rank].shape[:2] == share.shape


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda r: ByteRange(r[0], sum(r)))))
def test_merged_ranges_hold_the_same_bytes_each_once(ranges: list[ByteRange]) -> None:
    """Rising and with a gap between any two."""
    result = merged(ranges)
    assert {i for b, e in ranges for i in range(b, e)} == {i for b, e in result for i in range(b, e)}
    assert all(before.end < after.begin for before, after in itertools.pairwise(result))


def test_what_cannot_be_divided_is_refused_by_name() -> None:
    """With the arithmetic."""
    for tensor, storage, message in (
        (entry(Shard.ROWS), Storage(1, 3), r"tensor t has 4 rows, not a multiple of 3 ranks x 1"),
        (entry(Shard.ROWS), Storage(4, 2), r"4 rows, not a multiple of 2 ranks x 4"),
        (entry(Shard.COLUMNS), Storage(1, 4), r"6 columns, not a multiple of 4 ranks x 1"),
        (
            entry(Shard.COLUMNS, (2, 6), DType.INT4),
            Storage(1, 2),
            r"6 columns, not a multiple of 2 ranks x 2",
        ),
        (entry(Shard.COLUMNS, (4,)), Storage(), "no columns to be divided along"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_reads([tensor], storage, [0])
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        plan_reads([entry(Shard.ROWS)], Storage(1, 2), [2])


def scaled(shard: Shard, block: tuple[int, int], of_scales: Shard) -> tuple[TensorEntry, ...]:
    quantisation = Quantisation(scales="s", block=block)
    tensor = TensorSpec(name="t", dtype=DType.INT8, shape=(8, 64), shard=shard, quantisation=quantisation)
    shape = quantisation.shape_of_scales(tensor.shape)
    return plan([tensor, TensorSpec(name="s", dtype=DType.FP16, shape=shape, shard=of_scales)], 0).entries


@pytest.mark.parametrize(
    ("shard", "block", "of_scales", "message"),
    [
        (Shard.COLUMNS, (1, 32), Shard.COLUMNS, ""),
        (Shard.ROWS, (1, 32), Shard.ROWS, ""),
        (Shard.ROWS, (8, 64), Shard.REPLICATED, ""),
        (Shard.COLUMNS, (1, 64), Shard.REPLICATED, ""),
        (Shard.COLUMNS, (1, 48), Shard.COLUMNS, "tensor t has 64 columns, not a multiple of 2 ranks x 48"),
        (Shard.ROWS, (1, 32), Shard.REPLICATED, "tensor s is replicated, not rows as t needs"),
        (Shard.COLUMNS, (1, 64), Shard.COLUMNS, "tensor s is columns, not replicated as t needs"),
    ],
)
def test_scales_are_divided_with_what_they_scale(
    shard: Shard, block: tuple[int, int], of_scales: Shard, message: str
) -> None:
    """No rank needs another's scale, and none has half a block."""
    entries, storage = scaled(shard, block, of_scales), Storage(1, 2)
    if not message:
        assert 2 == len(plan_reads(entries, storage, [0, 1]))
        return
    with pytest.raises(ValueError, match=message):
        plan_reads(entries, storage, [0, 1])
