"""The block pool: no byte is lost or lent twice, whatever the order of events."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.block_pool import BlockPool, Reservation

TOTAL_BYTES = 49 * 64 + 5
SIZES = st.sampled_from([64, 96, 128, 320])


class PoolMachine(RuleBasedStateMachine):
    """Reserves, takes and gives back in any order, with blocks of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL_BYTES)
        self.held: dict[Reservation, set[int]] = {}

    @rule(size=SIZES, blocks=st.integers(1, 12))
    def reserve(self, size: int, blocks: int) -> None:
        if self.pool.can_reserve(size, blocks):
            self.held[self.pool.reserve(size, blocks)] = set()
        else:
            with pytest.raises(ValueError, match="no room"):
                self.pool.reserve(size, blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(list(self.held)))
        if len(self.held[reservation]) == reservation.blocks:
            with pytest.raises(ValueError, match="reserved blocks are taken"):
                reservation.take()
        else:
            block = reservation.take()
            assert block not in self.held[reservation]
            self.held[reservation].add(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(list(self.held)))
        del self.held[reservation]
        reservation.close()
        with pytest.raises(KeyError):
            reservation.close()

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check()
        assert sum(r.total_bytes for r in self.held) == self.pool.used_bytes
        assert TOTAL_BYTES == self.pool.free_bytes + self.pool.used_bytes

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        taken = [
            byte
            for reservation, blocks in self.held.items()
            for block in blocks
            for byte in range(block * reservation.block_bytes, (block + 1) * reservation.block_bytes, 32)
        ]
        assert len(set(taken)) == len(taken)
        assert all(byte < TOTAL_BYTES for byte in taken)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_s_a11_ten_thousand_random_moves_lose_no_block() -> None:
    """Submit, grow, abort and finish in any order on 64 blocks: free and used are the total after every move.

    Fault injection: turns red when Reservation.spans leaves out its last run.
    """
    chance, pool, held = random.Random(11), BlockPool(64 * 64), list[tuple[Reservation, int]]()
    for _ in range(10_000):
        blocks = chance.randint(1, 12)
        if held and (chance.random() < 0.5 or not pool.can_reserve(64, blocks)):
            reservation, left = held.pop(chance.randrange(len(held)))
            if left and chance.random() < 0.6:
                reservation.take()
                held.append((reservation, left - 1))
            else:  # finished, or aborted with blocks that it never took
                reservation.close()
        elif pool.can_reserve(64, blocks):
            held.append((pool.reserve(64, blocks), blocks))
        pool.check()
        assert sum(reservation.total_bytes for reservation, _ in held) == pool.used_bytes
        assert 64 * 64 == pool.free_bytes + pool.used_bytes
    for reservation, _ in held:
        reservation.close()
    assert [(0, 64 * 64)] == pool._free


def test_an_arena_of_one_block_size_can_be_used_up_to_its_last_whole_block() -> None:
    """49 whole blocks in the arena are 49 blocks that can be reserved, and not one more."""
    pool = BlockPool(TOTAL_BYTES)
    assert 49 == pool.room(64)
    with pool.reserve(64, 49):
        assert not pool.can_reserve(64, 1)
        assert 5 == pool.free_bytes
    assert 49 == pool.room(64)


def test_generations_of_two_block_sizes_share_one_arena() -> None:
    """A second generation takes what the first has left, and the first gets it back afterwards."""
    pool = BlockPool(64 * 100)
    old = pool.reserve(64, 50)
    with pool.reserve(128, 25) as new:
        assert {25 + i for i in range(25)} == {new.take() for _ in range(25)}
        assert 0 == pool.free_bytes
    old.close()
    assert [(0, 6400)] == pool._free


def test_a_hole_is_filled_before_untouched_memory() -> None:
    """Blocks given back are lent again first, so that an arena costs no more pages than its busiest moment."""
    pool = BlockPool(64 * 100)
    first, second = pool.reserve(64, 10), pool.reserve(64, 10)
    first.close()
    assert [*range(10), 20] == [pool.reserve(64, 11).take() for _ in range(1)] + [*range(1, 10), 20]
    second.close()
    pool.check()
