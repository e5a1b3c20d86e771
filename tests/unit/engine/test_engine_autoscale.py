"""The arena's size: it follows what is asked of it, gives way where memory is short, and does not waver."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.engine.autoscale import CALM_S, RECOVERY_S, Autoscale, Size, View

MIB = 1 << 20
FLOOR, MOST, NOTICE_S = 100 * MIB, 1000 * MIB, 10.0


def autoscale() -> Autoscale:
    return Autoscale(FLOOR, MOST, notice_s=NOTICE_S)


def view(
    total_mib: int, used_mib: int, room_mib: int = 10_000, *, alone_mib: int = 0, is_pressed: bool = False
) -> View:
    return View(total_mib * MIB, used_mib * MIB, alone_mib * MIB, room_mib * MIB, is_pressed)


def size(told_mib: int, total_mib: int) -> Size:
    return Size(told_mib * MIB, total_mib * MIB)


def test_it_grows_by_a_quarter_once_it_fills_up() -> None:
    """Not before, not beyond what the guard allows, and never beyond its bound.

    Fault injection: turns red when _larger forgets the room, or the bound.
    """
    scale = autoscale()
    assert size(200, 200) == scale.decide(0, view(200, 139))
    assert size(250, 250) == scale.decide(1, view(200, 140))
    assert size(220, 220) == scale.decide(2, view(200, 140, room_mib=21))
    assert size(200, 200) == scale.decide(3, view(200, 200, room_mib=1))
    assert size(1000, 1000) == scale.decide(4, view(900, 900))
    assert size(1000, 1000) == scale.decide(5, view(1000, 1000))


def test_it_shrinks_after_a_calm_and_only_once_the_promises_of_before_are_spent() -> None:
    """Schedulers are told first; whoever they had promised memory has come when it goes.

    Fault injection: turns red when decide shrinks without notice.
    """
    scale = autoscale()
    assert size(400, 400) == scale.decide(0, view(400, 270))
    assert size(400, 400) == scale.decide(1, view(400, 100))
    assert size(400, 400) == scale.decide(CALM_S - 1, view(400, 100))
    assert size(300, 400) == scale.decide(CALM_S, view(400, 100))
    assert size(300, 400) == scale.decide(CALM_S + NOTICE_S - 1, view(400, 100))
    assert size(300, 300) == scale.decide(CALM_S + NOTICE_S, view(400, 100))


def test_it_stays_when_use_comes_back_meanwhile() -> None:
    """What was told of is told anew."""
    scale = autoscale()
    scale.decide(0, view(400, 270))
    assert size(300, 400) == scale.decide(CALM_S, view(400, 100))
    assert size(500, 500) == scale.decide(CALM_S + 1, view(400, 290))
    assert size(500, 500) == scale.decide(CALM_S + NOTICE_S, view(500, 290))


def test_it_gives_way_at_once_where_memory_is_short() -> None:
    """Down to its floor or what is used; it never grows then, and not for a while afterwards.

    Fault injection: turns red when pressure is forgotten as soon as it is over.
    """
    scale = autoscale()
    assert size(100, 100) == scale.decide(0, view(400, 10, is_pressed=True))
    assert size(202, 202) == scale.decide(1, view(400, 181, is_pressed=True))
    assert size(202, 202) == scale.decide(2, view(202, 202, is_pressed=True))
    assert size(202, 202) == scale.decide(3, view(202, 202))
    assert size(202, 202) == scale.decide(2 + RECOVERY_S - 1, view(202, 202))
    assert size(252, 252) == scale.decide(2 + RECOVERY_S, view(202, 202))


def test_whoever_was_let_in_can_come_to_its_end() -> None:
    """The arena never becomes smaller than the worst case of one request, also where memory is short.

    Fault injection: turns red when _least looks at what is used alone.
    """
    scale = autoscale()
    assert size(299, 299) == scale.decide(0, view(400, 10, alone_mib=299, is_pressed=True))
    scale = autoscale()
    scale.decide(0, view(400, 100, alone_mib=350))
    assert size(350, 400) == scale.decide(CALM_S, view(400, 100, alone_mib=350))


@given(total_mib=st.integers(100, 1000), used_mib=st.integers(0, 1000), room_mib=st.integers(0, 2000))
def test_the_same_use_never_leads_back_and_forth(total_mib: int, used_mib: int, room_mib: int) -> None:
    """Within ten minutes it comes to rest, on the way in one direction only, between its bounds.

    Fault injection: turns red when SHRINK_AT is so high that a quarter less is in use for more than GROW_AT.
    """
    scale, total, sizes = autoscale(), total_mib * MIB, [total_mib * MIB]
    used = min(used_mib * MIB, total)
    for now_s in range(600):
        decided = scale.decide(now_s, View(total, used, 0, room_mib * MIB))
        assert decided.told_bytes <= decided.total_bytes
        assert FLOOR <= decided.total_bytes <= MOST
        total = decided.total_bytes
        sizes.append(total)
    assert sizes in (sorted(sizes), sorted(sizes, reverse=True))
    assert 1 == len(set(sizes[-100:]))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2000), st.booleans()), max_size=200))
def test_it_never_shrinks_below_what_is_used_nor_grows_beyond_the_room(
    looks: list[tuple[int, int, bool]],
) -> None:
    """Whatever comes; what it tells is never more than what it is to be."""
    scale, total = autoscale(), 2 * FLOOR
    for now_s, (used_mib, room_mib, is_pressed) in enumerate(looks):
        used = min(used_mib * MIB, total)
        decided = scale.decide(3.0 * now_s, View(total, used, 0, room_mib * MIB, is_pressed))
        assert max(FLOOR, used) <= decided.total_bytes <= min(MOST, total + room_mib * MIB)
        assert decided.told_bytes <= decided.total_bytes
        assert not is_pressed or decided.total_bytes <= total
        total = decided.total_bytes
