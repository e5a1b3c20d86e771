"""Who gives up memory for whom, how, and when it comes back: decisions alone."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.engine.preemption import MOST_PREEMPTIONS, CostModel, Memory, Standing, Way, victims

NEEDY = Standing(age=5, held_bytes=10)


def test_background_goes_first_and_then_the_youngest() -> None:
    """Until there is enough, and nobody beyond that."""
    warm, young, younger = Standing(2, 10, is_background=True), Standing(6, 10), Standing(7, 10)
    others = [Standing(0, 90), young, warm, younger]
    assert [warm] == victims(NEEDY, 1, others)
    assert [warm, younger] == victims(NEEDY, 11, others)
    assert [warm, younger, young] == victims(NEEDY, 30, others)


def test_nobody_goes_in_vain() -> None:
    """Where all who may go have too little, older ones finish first."""
    assert [] == victims(NEEDY, 21, [Standing(6, 10), Standing(7, 10), Standing(1, 500)])


def test_what_is_about_to_be_free_is_counted() -> None:
    """Somebody who leaves with the next step is enough; one who leaves and one more are, where they are needed.

    Fault injection: turns red when `victims` leaves out those who are leaving.
    """
    leaving, young = Standing(8, 10, is_leaving=True), Standing(6, 10)
    assert [] == victims(NEEDY, 10, [leaving, young])
    assert [young] == victims(NEEDY, 20, [leaving, young])


def test_whoever_was_set_back_twice_stays() -> None:
    """And work that nobody waits for takes nothing from what somebody waits for."""
    assert [] == victims(NEEDY, 5, [Standing(6, 10, preemptions=MOST_PREEMPTIONS)])
    warm = Standing(age=5, held_bytes=10, is_background=True)
    assert [] == victims(warm, 5, [Standing(6, 10)])
    assert [Standing(6, 10, is_background=True)] == victims(warm, 5, [Standing(6, 10, is_background=True)])


STANDINGS = st.lists(
    st.builds(
        Standing,
        age=st.integers(0, 50),
        held_bytes=st.integers(0, 40),
        preemptions=st.integers(0, 2),
        is_background=st.booleans(),
        is_leaving=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.age,
)


@given(STANDINGS, st.integers(0, 50), st.integers(1, 200), st.booleans())
def test_whoever_goes_was_free_to_go_and_was_needed(
    others: list[Standing], age: int, missing: int, is_background: bool
) -> None:
    """Each is younger or background, not twice set back, not leaving; all together are enough, and without one not."""
    needy = Standing(age=age, held_bytes=1, is_background=is_background)
    others = [other for other in others if other.age != age]
    chosen = victims(needy, missing, others)
    assert all(each.may_be_set_back_for(needy) for each in chosen)
    if chosen:
        free = sum(each.held_bytes for each in others if each.is_leaving)
        freed = sum(each.held_bytes for each in chosen)
        assert free + freed >= missing > free + freed - chosen[-1].held_bytes
        spared = [each for each in others if each.may_be_set_back_for(needy) and each not in chosen]
        assert all(
            (each.is_background, each.age) < (chosen[-1].is_background, chosen[-1].age) for each in spared
        )


@given(STANDINGS)
def test_the_oldest_is_never_held_up_for_ever(others: list[Standing]) -> None:
    """Whoever holds what the oldest may not take was set back twice: it has all it needs and ends by itself."""
    oldest = Standing(age=-1, held_bytes=1)
    takable = sum(each.held_bytes for each in others if each.may_be_set_back_for(oldest))
    leaving = sum(each.held_bytes for each in others if each.is_leaving)
    rest = [each for each in others if not each.is_leaving and not each.may_be_set_back_for(oldest)]
    assert all(each.preemptions == MOST_PREEMPTIONS or not each.held_bytes for each in rest)
    if takable + leaving:
        wanted = takable + leaving
        assert wanted <= leaving + sum(each.held_bytes for each in victims(oldest, wanted, others))


def memory(room: int, growth: int = 0, *, is_used: bool = True) -> Memory:
    return Memory(total_bytes=1000, room_bytes=room, growth_bytes=growth, is_used=is_used)


def test_what_is_sure_to_be_enough_is_lent_to_the_last_byte() -> None:
    """Above the hard watermark nothing begins, as far as those who run may need what is left."""
    assert memory(100).may_begin(100, headroom=0.1)
    assert not memory(100, growth=1).may_begin(100, headroom=0.1)
    assert memory(200, growth=5000).may_begin(100, headroom=0.1)
    assert not memory(199, growth=5000).may_begin(100, headroom=0.1)
    assert memory(1000, growth=5000, is_used=False).may_begin(1000, headroom=0.1)


def test_a_request_comes_back_with_room_to_spare_or_alone() -> None:
    """Fault injection: turns red when `may_come_back` leaves out the hysteresis."""
    assert memory(150).may_come_back(100)
    assert not memory(149).may_come_back(100)
    assert memory(1000, is_used=False).may_come_back(1000)


@pytest.mark.parametrize(
    ("tokens", "stored", "room", "way"),
    [
        (1000, 10_000, 10_000, Way.SWAP),
        (1000, 10_000, 9_999, Way.RECOMPUTE),  # no room outside
        (1000, 0, 10_000, Way.RECOMPUTE),  # nothing is stored
        (1, 10_000_000, 10_000_000, Way.RECOMPUTE),  # much is stored that is computed fast
    ],
)
def test_the_cheaper_way_is_taken(tokens: int, stored: int, room: int, way: Way) -> None:
    """A copy goes out and back at 1 GB/s; a token takes a millisecond."""
    costs = CostModel(copy_bytes_per_s=1e9, prefill_s_per_token=1e-3)
    assert way is costs.cheaper(tokens, stored, room)
