"""The file of a rank: all of its parts and nothing else, wherever the whole file's blocks are cut."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import Shard, TensorEntry, TensorSpec
from services.common.checkpoint.rank_file import Move, RankFile, blocks_of
from services.common.checkpoint.shard_plan import Share, share_of
from tests.unit.checkpoint.strategies import ARCHITECTURE

AXIS = {Shard.ROWS: 0, Shard.COLUMNS: 1}
RANKS = 3


def spec(name: str, shard: Shard, rows: int, columns: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=DType.BF16, shape=(rows, columns), shard=shard)


SPECS = st.lists(
    st.tuples(st.sampled_from(Shard), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4
).map(
    lambda many: [
        spec(f"t{i}", shard, RANKS * rows, RANKS * columns) for i, (shard, rows, columns) in enumerate(many)
    ]
)


def deal(file: RankFile, whole: npt.NDArray[np.uint8], cuts: set[int]) -> npt.NDArray[np.uint8]:
    """The rank's file, its pieces copied window by window, element by element."""
    made = np.zeros(file.header.file_bytes, np.uint8)
    for begin, end in itertools.pairwise(sorted({0, *cuts, len(whole)})):
        for piece in file.pieces(begin, end):
            for run in range(piece.runs):
                source = piece.source + run * piece.stride_bytes
                target = piece.target + run * piece.run_bytes
                assert begin <= source < source + piece.run_bytes <= end
                made[target : target + piece.run_bytes] += whole[source : source + piece.run_bytes]
    return made


CUTS = st.sets(
    st.builds(lambda page, byte: 4096 * page + byte, st.integers(1, 4), st.integers(0, 450)), max_size=8
)


@given(SPECS, CUTS)
def test_a_rank_gets_its_parts_however_the_file_is_cut(specs: list[TensorSpec], cuts: set[int]) -> None:
    """Every byte once: what numpy's split gives it, tensor by tensor, and zeros between.

    Fault injection: turns red when Move.pieces leaves out a run that a window cuts off.
    """
    header = Header.lay_out(specs, ARCHITECTURE)
    whole = np.zeros(header.file_bytes, np.uint8)
    data = np.random.default_rng(0)
    for entry in header.layout.entries:
        whole[entry.offset : entry.end] = data.integers(1, 255, entry.nbytes, np.uint8)
    for rank in range(RANKS):
        file = RankFile.plan(header, rank, RANKS)
        made = deal(file, whole, cuts)
        expected = np.zeros_like(made)
        for entry in header.layout.entries:
            part = part_of(whole, entry, rank)
            mine = file.header.tensors[entry.name]
            assert part.shape[:2] == mine.shape
            expected[mine.offset : mine.end] = part.ravel()
        assert expected.tobytes() == made.tobytes()


def part_of(whole: npt.NDArray[np.uint8], entry: TensorEntry, rank: int) -> npt.NDArray[np.uint8]:
    tensor = whole[entry.offset : entry.end].reshape(*entry.shape, 2)
    if entry.shard is Shard.REPLICATED:
        return tensor
    return np.split(tensor, RANKS, AXIS[entry.shard])[rank]


def test_a_rank_file_is_a_weight_file() -> None:
    """Its header can be written and read; groups stay together, and it is divided no further."""
    specs = [
        TensorSpec(name=name, dtype=DType.BF16, shape=(4, 8), group="qkv", shard=Shard.ROWS) for name in "qkv"
    ]
    made = RankFile.plan(Header.lay_out(specs, ARCHITECTURE), 1, 2).header
    assert made == Header.decode(made.encode())
    assert [(2, 8)] * 3 == [entry.shape for entry in made.layout.entries]
    assert [32, 32] == [b.offset - a.offset for a, b in itertools.pairwise(made.layout.entries)]
    assert 1 == made.storage.tensor_parallel_size


def move(shard: Shard, shape: tuple[int, int], rank: int) -> Move:
    nbytes = DType.INT8.nbytes(shape)
    entry = TensorEntry(
        name="t", dtype=DType.INT8, shape=shape, offset=0, nbytes=nbytes, group="", shard=shard
    )
    return Move(entry, share_of(entry, rank, 2), 0)


@pytest.mark.parametrize(
    ("shard", "shape", "rank", "blocks"),
    [
        (Shard.ROWS, (4, BLOCK_BYTES), 0, [0, 1]),
        (Shard.ROWS, (4, BLOCK_BYTES), 1, [2, 3]),
        (Shard.ROWS, (2, BLOCK_BYTES // 2), 1, [0]),
        (Shard.COLUMNS, (4, BLOCK_BYTES), 1, [0, 1, 2, 3]),
        (Shard.COLUMNS, (2, 4 * BLOCK_BYTES), 0, [0, 1, 4, 5]),
        (Shard.COLUMNS, (2, 4 * BLOCK_BYTES), 1, [2, 3, 6, 7]),
        (Shard.REPLICATED, (1, BLOCK_BYTES + 1), 0, [0, 1]),
    ],
)
def test_blocks_that_hold_nothing_of_a_rank_are_not_read(
    shard: Shard, shape: tuple[int, int], rank: int, blocks: list[int]
) -> None:
    """Those that hold some of it are."""
    assert blocks == list(move(shard, shape, rank).blocks(0))


def test_ranks_of_a_host_need_each_block_once() -> None:
    """However many of them have something of it."""
    whole = Header.lay_out([spec("t", Shard.ROWS, 2, BLOCK_BYTES)], ARCHITECTURE)
    files = [RankFile.plan(whole, rank, 2) for rank in (0, 1)]
    assert ((0, 1), (2, 3)) == (blocks_of(files[:1], whole), blocks_of(files[1:], whole))
    assert (0, 1, 2, 3) == blocks_of(files, whole)


def test_a_share_of_one_run_is_one_piece() -> None:
    """And nothing outside its extent is."""
    alone = Move(move(Shard.ROWS, (4, 4), 0).entry, Share((2, 4), 100, 8, 8, 1), 7)
    assert [(102, 9, 4)] == [(p.source, p.target, p.run_bytes) for p in alone.pieces(102, 106)]
    assert [] == [*alone.pieces(0, 100), *alone.pieces(108, 200)]
