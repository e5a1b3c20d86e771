"""Ids are remembered for a while, and never too many of them."""

from __future__ import annotations

from services.common.recent_ids import RecentIds


def test_the_oldest_go_first() -> None:
    """One more than the bound pushes out the one that was added first; adding anew makes an id young again."""
    ids = RecentIds[str](most=2, keep_s=60)
    for item in ("a", "b", "a", "c"):
        ids.add(item, 0.0)
    assert {"a": True, "b": False, "c": True} == {item: ids.holds(item, 0.0) for item in "abc"}
    assert 2 == len(ids)


def test_an_old_id_is_not_held() -> None:
    """Its time is over although there is room."""
    ids = RecentIds[str](most=2, keep_s=10)
    ids.add("a", 5.0)
    assert (True, False) == (ids.holds("a", 15.0), ids.holds("a", 15.1))


def test_an_id_is_taken_once() -> None:
    ids = RecentIds[str](most=2, keep_s=10)
    ids.add("a", 0.0)
    assert (True, False) == (ids.take("a", 1.0), ids.take("a", 1.0))
