"""The block pool: no byte is lost or lent twice, whatever the order of events; pages outlive their reservations."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.block_pool import BlockPool
from services.engine.page import Page
from services.engine.reservation import Reservation
from services.engine.span_set import Span

MOST_BYTES = 98 * 64 + 7
TOTAL_BYTES = 49 * 64 + 5
SIZES = st.sampled_from([64, 96, 128, 320])
POSITIONS = st.integers(0, MOST_BYTES)


class PoolMachine(RuleBasedStateMachine):
    """Reserves, grows, takes, parts, pins, unpins, withholds, resizes and gives back in any order; blocks differ in size."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL_BYTES)
        self.total_bytes = TOTAL_BYTES
        self.held: dict[Reservation, set[int]] = {}
        self.pages: dict[Page, int] = {}  # with its users; those that are evicted go
        self.unused: list[Page] = []  # longest first

    @rule(size=SIZES, blocks=st.integers(1, 24))
    def reserve(self, size: int, blocks: int) -> None:
        if self.pool.can_reserve(size, blocks):
            with self.oldest_going_first():
                self.held[self.pool.reserve(size, blocks)] = set()
        else:
            with pytest.raises(ValueError, match="no room"):
                self.pool.reserve(size, blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), blocks=st.integers(1, 24))
    def grow(self, data: st.DataObject, blocks: int) -> None:
        reservation = data.draw(st.sampled_from(list(self.held)))
        before, untaken = reservation.blocks, reservation.untaken
        if self.pool.can_grow(reservation, blocks):
            with self.oldest_going_first():
                reservation.grow(blocks)
            assert (before + blocks, untaken + blocks) == (reservation.blocks, reservation.untaken)
        else:
            with pytest.raises(ValueError, match="no room"):
                reservation.grow(blocks)
            assert (before, untaken) == (reservation.blocks, reservation.untaken)

    @contextlib.contextmanager
    def oldest_going_first(self) -> Iterator[None]:
        before = list(self.unused)
        yield
        assert self.unused == before[len(before) - len(self.unused) :], "the longest unused go first"

    @rule(total_bytes=POSITIONS)
    def resize(self, total_bytes: int) -> None:
        if total_bytes >= self.total_bytes:
            self.pool.extend(total_bytes)
            self.total_bytes = total_bytes
            return
        end = max([total_bytes, *(span.end for span in self.lent())])
        assert Span(end, self.total_bytes) == self.pool.give_up(total_bytes)
        self.total_bytes = end

    @rule(start=POSITIONS, size=st.integers(0, 500))
    def withhold(self, start: int, size: int) -> None:
        free = self.pool.free_bytes
        with self.pool.withheld(Span(start, start + size)) as spans:
            assert free == self.pool.free_bytes + sum(span.size_bytes for span in spans)
            assert all(start <= span.start < span.end <= start + size for span in spans)
            self.pool.check()
            self.pool.check_spans()

    def lent(self) -> list[Span]:
        reserved = [span for reservation in self.held for span in reservation.spans()]
        return reserved + [page.span for page, users in self.pages.items() if users]

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

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def part(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from([held for held, taken in self.held.items() if taken]))
        block = data.draw(st.sampled_from(sorted(self.held[reservation])))
        self.held[reservation].remove(block)
        page = reservation.part_with(block, lambda: self.evict(page))
        self.pages[page] = 1
        with pytest.raises(ValueError, match="not in this reservation"):
            reservation.part_with(block, lambda: None)

    def evict(self, page: Page) -> None:
        assert 0 == self.pages.pop(page)
        self.unused.remove(page)

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(list(self.pages)))
        page.pin()
        self.pages[page] += 1
        self.unused = [each for each in self.unused if each is not page]

    @precondition(lambda self: any(self.pages.values()))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from([page for page, users in self.pages.items() if users]))
        page.unpin()
        self.pages[page] -= 1
        self.unused += [page] * (not self.pages[page])

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(list(self.pages)))
        page.drop()
        for _ in range(self.pages.pop(page)):
            assert not page.is_gone
            page.unpin()
        assert page.is_gone
        self.unused = [each for each in self.unused if each is not page]

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
        self.pool.check_spans()
        used = [page.total_bytes for page, users in self.pages.items() if users]
        assert sum(r.total_bytes for r in self.held) + sum(used) == self.pool.used_bytes
        assert sum(page.total_bytes for page in self.unused) == self.pool.reclaimable_bytes
        assert self.total_bytes == self.pool.free_bytes + self.pool.reclaimable_bytes + self.pool.used_bytes

    @invariant()
    def nothing_lies_beyond_the_end(self) -> None:
        assert self.total_bytes == self.pool.total_bytes
        assert all(
            span.end <= self.total_bytes for span in [*self.lent(), *(page.span for page in self.unused)]
        )

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        taken = [
            byte
            for reservation, blocks in self.held.items()
            for block in blocks
            for byte in range(block * reservation.block_bytes, (block + 1) * reservation.block_bytes, 32)
        ] + [byte for page in self.pages for byte in range(*page.span, 32)]
        assert len(set(taken)) == len(taken)
        assert all(byte < self.total_bytes for byte in taken)


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
        pool.check_spans()
        assert sum(reservation.total_bytes for reservation, _ in held) == pool.used_bytes
        assert 64 * 64 == pool.free_bytes + pool.used_bytes
    for reservation, _ in held:
        reservation.close()
    assert [(0, 64 * 64)] == list(pool._free.spans)


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
    assert [(0, 6400)] == list(pool._free.spans)


def test_a_hole_is_filled_before_untouched_memory() -> None:
    """Blocks given back are lent again first, so that an arena costs no more pages than its busiest moment."""
    pool = BlockPool(64 * 100)
    first, second = pool.reserve(64, 10), pool.reserve(64, 10)
    first.close()
    assert [*range(10), 20] == [pool.reserve(64, 11).take() for _ in range(1)] + [*range(1, 10), 20]
    second.close()
    pool.check()


def test_a_page_outlives_its_reservation_and_goes_when_its_bytes_are_needed() -> None:
    """Used it is no room; unused it is, without being free, until a reservation needs it: then its owner hears of it.

    Fault injection: turns red when Reservation.spans leaves the parted blocks in.
    """
    pool, gone = BlockPool(64 * 4), list[str]()
    with pool.reserve(64, 3) as reservation:
        first = reservation.part_with(reservation.take(), lambda: gone.append("first"))
        second = reservation.part_with(reservation.take(), lambda: gone.append("second"))
        assert (3 * 64, 0, 1) == (pool.used_bytes, pool.reclaimable_bytes, pool.room(64))
    assert (2 * 64, 0, 2) == (pool.used_bytes, pool.reclaimable_bytes, pool.room(64))
    second.unpin()
    first.unpin()
    assert (0, 2 * 64, 4) == (pool.used_bytes, pool.reclaimable_bytes, pool.room(64))
    with pool.reserve(64, 2):
        assert [] == gone
        with pool.reserve(64, 1):
            assert ["second"] == gone, "the one that was left first"
            first.pin()
            assert not pool.can_reserve(64, 1)
            first.unpin()
    with pool.reserve(256, 1):
        assert ["second", "first"] == gone
    pool.check()
    pool.check_spans()


def test_a_reservation_that_grows_takes_the_lowest_holes() -> None:
    """Until it has parted with them, all that it took is its own; another thread's take() sees what came last."""
    pool = BlockPool(64 * 32)
    held = [pool.reserve(64, 1) for _ in range(8)]
    for reservation in held[::2]:
        reservation.close()
    with pool.reserve(64, 3) as grown:
        assert [0, 2, 4] == [grown.take() for _ in range(3)]
        with pytest.raises(ValueError, match="grow the reservation"):
            grown.take()
        grown.grow(3)
        assert (3, 6) == (grown.untaken, grown.blocks)
        assert [6, 8, 9] == [grown.take() for _ in range(3)]
        assert {1: 5 + 4} == pool.extents
    pool.check_spans()


def test_pages_of_an_extent_are_reclaimed_one_by_one() -> None:
    """Half of an extent of 256 tokens is kept in use, the other half goes to others, and together they are whole again.

    Fault injection: turns red when _free_unused adds nothing.
    """
    pool = BlockPool(64 * 16)
    with pool.reserve(64, 16) as reservation:
        blocks = [reservation.take() for _ in range(16)]
        pages = [reservation.part_with(block, lambda: None) for block in blocks]
    for page in pages[8:]:
        page.unpin()
    assert (8 * 64, 8 * 64, 8) == (pool.used_bytes, pool.reclaimable_bytes, pool.room(64))
    with pool.reserve(64, 8) as other:
        assert {*range(8, 16)} == {other.take() for _ in range(8)}
        assert [False] * 8 + [True] * 8 == [page.is_gone for page in pages]
        assert [False] * 8 == [page.pin() for page in pages[8:]]
        pool.check_spans()
    for page in pages[:8]:
        page.unpin()
    with pool.reserve(16 * 64, 1):
        assert all(page.is_gone for page in pages)


def test_new_requests_leave_some_for_those_that_grow() -> None:
    """Of 100 blocks 10 are never promised; a running request gets them all the same.

    Fault injection: turns red when can_reserve asks for room alone.
    """
    pool = BlockPool(64 * 100, 0.1)
    assert 64 * 90 == pool.promisable_bytes
    assert not pool.can_reserve(64, 91)
    with pool.reserve(64, 90) as reservation:
        assert not pool.can_reserve(64, 1)
        assert pool.can_grow(reservation, 10)
        assert not pool.can_grow(reservation, 11)
        reservation.grow(10)
        assert 0 == pool.free_bytes
    pool.check()


def test_kept_pages_go_before_they_reach_into_what_is_to_stay_free() -> None:
    """So that whoever grows finds free blocks, and need not evict pages in a step.

    Fault injection: turns red when _rest keeps whatever comes.
    """
    pool, gone = BlockPool(64 * 10, 0.2), list[int]()
    with pool.reserve(64, 8) as reservation:
        reservation.grow(2)
        pages = [
            reservation.part_with(reservation.take(), functools.partial(gone.append, i)) for i in range(10)
        ]
    assert 0 == pool.free_bytes
    for page in pages:
        page.unpin()
        pool.check_spans()
    assert [0, 1] == gone, "those that were left first"
    assert (2 * 64, 8 * 64) == (pool.free_bytes, pool.reclaimable_bytes)
    with pool.reserve(64, 2):
        assert [0, 1, 2, 3] == gone, "what is to stay free is free again at once"


def test_an_arena_shrinks_as_far_as_nothing_is_lent() -> None:
    """What is kept beyond its new end goes; what is used stays, and so does all that lies before it.

    Fault injection: turns red when give_up lets pages be.
    """
    pool = BlockPool(64 * 100)
    with pool.reserve(64, 50), pool.reserve(64, 4) as reservation:
        page = reservation.part_with(reservation.take(), lambda: None)
    assert Span(51 * 64, 6400) == pool.give_up(0)
    assert (51 * 64, 50) == (pool.total_bytes, page.block)
    page.unpin()
    assert Span(0, 51 * 64) == pool.give_up(0)
    assert page.is_gone
    pool.extend(640)
    assert 10 == pool.room(64)
    pool.check_spans()
