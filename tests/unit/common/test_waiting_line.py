"""Who is next when room is short: order of arrival, but that small ones pass large ones, as far as these allow."""

from __future__ import annotations

import collections
from typing import Final

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.waiting_line import PATIENCE, WaitingLine


def line(*needs: int) -> WaitingLine[int]:
    """Numbered by arrival."""
    made = WaitingLine[int]()
    for number, need in enumerate(needs):
        made.push(number, need, (0, number))
    return made


def test_the_first_is_tried_first_and_then_whoever_needs_less_than_all_before() -> None:
    """Who needs as much as one before it, or more, would find no room either.

    Fault injection: turns red when `candidates` does not compare needs.
    """
    assert [0, 1, 4] == list(line(100, 50, 50, 70, 20).candidates())
    assert [] == list(line().candidates())


def test_whoever_was_passed_often_enough_is_passed_no_more() -> None:
    """All that have passed it together come to `PATIENCE` times its own need.

    Fault injection: turns red when `serve` does not tell those who were passed, or `candidates` does not ask them.
    """
    waiting = line(10, *(4 for _ in range(50)))
    passed = []
    while len(tried := list(waiting.candidates())) > 1:
        waiting.serve(tried[1])
        passed.append(tried[1])
    assert list(range(1, 1 + PATIENCE * 10 // 4)) == passed
    assert [0] == tried
    waiting.serve(0)
    assert [passed[-1] + 1] == list(waiting.candidates())


def test_a_newcomer_passes_like_any_other() -> None:
    """And those whom it has passed remember it.

    Fault injection: turns red when `note_passed` does nothing, or `may_pass` looks at the first in line alone.
    """
    waiting, late = line(10, 5), (0, 9)
    assert not waiting.may_pass(5, late)
    for _ in range(PATIENCE):
        assert waiting.may_pass(4, late)
        waiting.note_passed(4, late)
    waiting.note_passed(PATIENCE, late)
    assert not waiting.may_pass(1, late)
    assert waiting.may_pass(9, (0, 1))  # between the two
    assert line().may_pass(1000, late)


def test_whoever_comes_back_stands_where_it_stood() -> None:
    """Its rank says where; who leaves without having been served has passed nobody."""
    waiting = line(10, 9, 8)
    waiting.remove(0)
    waiting.remove(2)
    waiting.push(0, 10, (0, 0))
    waiting.push(7, 8, (1, 7))
    waiting.push(8, 8, (0, 8))
    assert [0, 1, 8, 7] == list(waiting)
    assert (0, 4) == (waiting.first, len(waiting))
    assert 7 in waiting
    assert 2 not in waiting
    assert WaitingLine[int]().first is None


@given(st.lists(st.integers(30, 300), min_size=1, max_size=60), st.integers(300, 900))
def test_everybody_is_served_however_many_small_ones_come(needs: list[int], room: int) -> None:
    """One large one, and small ones that come one a turn and stay for three: it is in after a bounded part of them."""
    waiting, inside = WaitingLine[int](), collections.deque[tuple[int, int]]()
    waiting.push(0, room, (0, 0))
    passed, number, turn = 0, 0, 0
    while waiting.first == 0:
        turn += 1
        number += 1
        need = needs[number % len(needs)]
        waiting.push(number, min(need, room - 1), (0, number))
        while inside and inside[0][0] <= turn:
            inside.popleft()
        for who in waiting.candidates():
            wanted = room if who == 0 else min(needs[who % len(needs)], room - 1)
            if wanted <= room - sum(each for _, each in inside):
                waiting.serve(who)
                inside.append((turn + 3, wanted))
                passed += wanted * (who > 0)
                break
        waiting.check()
    assert passed <= PATIENCE * room
    assert turn <= 3 * (PATIENCE * room // 30 + 2)


class LineMachine(RuleBasedStateMachine):
    """A line beside a plain account of who has passed whom."""

    MOST_NEED: Final = 40

    def __init__(self) -> None:
        super().__init__()
        self.line = WaitingLine[int]()
        self.needs: dict[int, int] = {}
        self.passed: collections.Counter[int] = collections.Counter()
        self.arrivals = 0

    @rule(need=st.integers(1, MOST_NEED))
    def push(self, need: int) -> None:
        self.line.push(self.arrivals, need, (0, self.arrivals))
        self.needs[self.arrivals] = need
        self.arrivals += 1

    @rule(need=st.integers(1, MOST_NEED), which=st.integers(0, 100))
    def pass_some(self, need: int, which: int) -> None:
        at = sorted([*self.needs, self.arrivals])[which % (len(self.needs) + 1)]
        before = [each for each in self.needs if each < at]
        assert self._may_pass(need, at) is self.line.may_pass(need, (0, at))
        if self._may_pass(need, at):
            self.line.note_passed(need, (0, at))
            self.passed.update(dict.fromkeys(before, need))

    @precondition(lambda self: self.needs)
    @rule(which=st.integers(0, 100))
    def serve(self, which: int) -> None:
        tried = list(self.line.candidates())
        who = tried[which % len(tried)]
        self.line.serve(who)
        self.passed.update({each: self.needs[who] for each in self.needs if each < who})
        del self.needs[who]

    @precondition(lambda self: self.needs)
    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        who = sorted(self.needs)[which % len(self.needs)]
        self.line.remove(who)
        del self.needs[who]

    @invariant()
    def nobody_is_passed_by_more_than_it_allows(self) -> None:
        self.line.check()
        assert sorted(self.needs) == list(self.line)
        assert all(self.passed[who] <= PATIENCE * need for who, need in self.needs.items())

    @invariant()
    def whoever_may_be_next_is_tried(self) -> None:
        expected = [who for who, need in sorted(self.needs.items()) if self._may_pass(need, who)]
        assert expected == list(self.line.candidates())

    def _may_pass(self, need: int, at: int) -> bool:
        return all(
            need < other and self.passed[each] + need <= PATIENCE * other
            for each, other in self.needs.items()
            if each < at
        )


TestLine = LineMachine.TestCase
