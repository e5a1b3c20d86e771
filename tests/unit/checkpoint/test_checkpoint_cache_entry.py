"""Which entries of a cache go first."""

from __future__ import annotations

import pytest

from services.common.checkpoint.cache_entry import CacheEntry, EntryKind, plan_eviction, total_bytes


def entry(name: str, used_at_s: float, sizes: dict[int, int], mark: str = "") -> CacheEntry:
    return CacheEntry(name, used_at_s, sizes, is_pinned=mark == "pinned", is_held=mark == "held")


OLD, MIDDLE, NEW = entry("old", 1, {1: 10}), entry("middle", 2, {2: 20}), entry("new", 3, {3: 30})
TWIN = entry("twin", 4, {1: 10, 4: 5})  # has the file of OLD too


@pytest.mark.parametrize(
    ("entries", "excess_bytes", "victims", "freed_bytes"),
    [
        ((), 5, "", 0),
        ((NEW, OLD, MIDDLE), 0, "", 0),
        ((NEW, OLD, MIDDLE), -7, "", 0),
        ((NEW, OLD, MIDDLE), 1, "old", 10),
        ((NEW, OLD, MIDDLE), 10, "old", 10),
        ((NEW, OLD, MIDDLE), 11, "old middle", 30),
        ((NEW, OLD, MIDDLE), 99, "old middle new", 60),
        ((NEW, entry("old", 1, {1: 10}, "pinned"), MIDDLE), 1, "middle", 20),
        ((NEW, entry("old", 1, {1: 10}, "held"), MIDDLE), 21, "middle new", 50),
        ((TWIN, OLD, MIDDLE), 1, "old middle", 20),
        ((TWIN, OLD), 1, "old twin", 15),
        ((TWIN, entry("old", 1, {1: 10}, "pinned")), 1, "twin", 5),
    ],
)
def test_those_used_longest_ago_go_first(
    entries: tuple[CacheEntry, ...], excess_bytes: int, victims: str, freed_bytes: int
) -> None:
    """As many as it takes; what is pinned or held stays, and what another has too frees nothing.

    Fault injection: plan_eviction counts a shared file for every entry that has it.
    """
    plan = plan_eviction(entries, excess_bytes)
    assert (victims.split(), freed_bytes) == ([each.name for each in plan.victims], plan.freed_bytes)


def test_a_shared_file_counts_once() -> None:
    """In what a cache takes, not in what an artifact has."""
    assert 15 == total_bytes((OLD, TWIN))
    assert (10, 15) == (OLD.size_bytes, TWIN.size_bytes)


def test_what_was_derived_goes_before_its_artifact() -> None:
    """Of two that were used at the same time, the one that is made again in seconds.

    Fault injection: turns red when plan_eviction sorts by time alone.
    """
    derived = OLD._replace(name="old.packed", sizes={9: 40}, kind=EntryKind.DERIVED)
    plan = plan_eviction((NEW, OLD, derived), 41)
    assert (["old.packed", "old"], 50) == ([each.name for each in plan.victims], plan.freed_bytes)
