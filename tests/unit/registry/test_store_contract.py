"""What every store does alike; each test runs on the store in memory and on a real etcd."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from services.common.errors import PreconditionFailed
from services.common.registry.store import Change, Changes, Delete, Entry, Put, Snapshot, Store, Unchanged
from services.gateway.artifact_audit import MAX_DROPPED


async def value(store: Store, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


def keys_and_values(items: Sequence[Entry | Change]) -> list[tuple[str, bytes | None]]:
    return [(item.key, item.value) for item in items]


async def test_a_key_never_written_is_not_there(store: Store) -> None:
    """A key that was never written reads as None."""
    assert await store.get("a") is None


async def test_a_put_is_read_back_with_a_rising_revision(store: Store) -> None:
    """The value comes back, and every write raises the key's mod_revision."""
    await store.put("a", b"1")
    first = await store.get("a")
    await store.put("a", b"2")
    second = await store.get("a")
    assert first is not None
    assert second is not None
    assert ("a", b"1") == first[:2]
    assert ("a", b"2") == second[:2]
    assert second.mod_revision > first.mod_revision >= 1


async def test_a_listing_holds_the_prefix_in_key_order(store: Store) -> None:
    """A listing holds the keys under the prefix, no others, sorted, with their own revisions."""
    for key in ("a/2", "b/1", "a/1", "a", "a0"):
        await store.put(key, key.encode())
    listing = await store.list("a/")
    assert [("a/1", b"a/1"), ("a/2", b"a/2")] == keys_and_values(listing.entries)
    assert all(entry.mod_revision <= listing.revision for entry in listing.entries)


async def test_a_head_holds_the_first_and_how_many_there_are(store: Store) -> None:
    """Of the prefix alone, in the order of keys."""
    for key in ("a/3", "b/1", "a/1", "a/2", "a0"):
        await store.put(key, key.encode())
    head = await store.head("a/", 2)
    assert (3, [("a/1", b"a/1"), ("a/2", b"a/2")]) == (head.total, keys_and_values(head.entries))
    assert (0, ()) == await store.head("c/", 1)


async def test_a_listing_of_everything_is_of_this_environment(store: Store) -> None:
    """The empty prefix lists all keys of the store's own environment."""
    await store.put("b", b"1")
    await store.put("a/x", b"2")
    assert [("a/x", b"2"), ("b", b"1")] == keys_and_values((await store.list("")).entries)


async def test_a_long_listing_is_whole(store: Store) -> None:
    """A listing longer than one page has every key once."""
    for number in range(0, 1100, 100):
        await store.commit([], [Put(f"p/{n:05d}", b"x") for n in range(number, number + 100)])
    assert [f"p/{n:05d}" for n in range(1100)] == [entry.key for entry in (await store.list("p/")).entries]


async def test_a_deleted_key_is_gone_and_deleting_it_again_is_no_error(store: Store) -> None:
    """Delete takes the key away; where there is none it does nothing."""
    await store.put("a", b"1")
    await store.delete("a")
    await store.delete("a")
    assert await store.get("a") is None


async def test_a_commit_applies_all_writes_at_one_revision(store: Store) -> None:
    """Where the conditions hold, all writes are applied together."""
    await store.put("gone", b"x")
    seen = await store.get("gone")
    assert seen is not None
    conditions = [Unchanged("gone", seen.mod_revision), Unchanged("new", 0)]
    assert await store.commit(conditions, [Put("new", b"1"), Put("other", b"2"), Delete("gone")])
    entries = (await store.list("")).entries
    assert [("new", b"1"), ("other", b"2")] == keys_and_values(entries)
    assert 1 == len({entry.mod_revision for entry in entries})


async def test_the_longest_commit_that_anybody_makes_is_taken(store: Store) -> None:
    """A verdict with its audit record, and the records that go. Turns red when: MAX_DROPPED is 127."""
    going = [Delete(f"old/{number}") for number in range(MAX_DROPPED)]
    for delete in going:
        await store.put(delete.key, b"x")
    assert await store.commit([Unchanged("new", 0)], [Put("new", b"1"), Put("other", b"2"), *going])
    assert [("new", b"1"), ("other", b"2")] == keys_and_values((await store.list("")).entries)


async def test_a_commit_with_one_failed_condition_writes_nothing(store: Store) -> None:
    """One condition that does not hold is enough to apply nothing."""
    await store.put("a", b"1")
    assert not await store.commit([Unchanged("b", 0), Unchanged("a", 0)], [Put("a", b"2"), Put("b", b"2")])
    assert [("a", b"1")] == keys_and_values((await store.list("")).entries)


async def test_a_deleted_key_counts_as_never_written(store: Store) -> None:
    """mod_revision 0 holds again after a delete."""
    await store.put("a", b"1")
    await store.delete("a")
    assert await store.commit([Unchanged("a", 0)], [Put("a", b"2")])
    assert b"2" == await value(store, "a")


async def test_a_commit_that_writes_a_key_twice_is_refused(store: Store) -> None:
    """A commit cannot write one key twice: which write should stand?"""
    with pytest.raises(ValueError, match="at most once"):
        await store.commit([], [Put("a", b"1"), Delete("a")])


async def test_leased_keys_vanish_with_the_scope(store: Store) -> None:
    """The lease's end takes its keys along, and no others."""
    async with store.lease(5) as lease:
        await store.put("a", b"1", lease.id)
        await store.put("b", b"2")
        assert b"1" == await value(store, "a")
        assert not lease.lost.is_set()
    assert [("b", b"2")] == keys_and_values((await store.list("")).entries)


async def test_a_key_taken_over_survives_its_former_lease(store: Store) -> None:
    """A restarted process that writes its key under a new lease keeps it when the old lease ends."""
    async with store.lease(5) as new:
        async with store.lease(5) as old:
            await store.put("a", b"1", old.id)
            await store.put("a", b"2", new.id)
        assert b"2" == await value(store, "a")


async def test_a_write_under_an_ended_lease_is_refused(store: Store) -> None:
    """A lease that has ended carries no more keys."""
    async with store.lease(5) as lease:
        pass
    with pytest.raises(PreconditionFailed) as refused:
        await store.put("a", b"1", lease.id)
    assert "LEASE_ENDED" == refused.value.reason


async def test_an_error_inside_a_lease_passes_as_it_is(store: Store) -> None:
    """The scope adds no group around what its body raises."""
    with pytest.raises(KeyError):
        async with store.lease(5):
            raise KeyError("mine")


async def test_a_watch_begins_with_what_is_there(store: Store) -> None:
    """The first message is a snapshot of the prefix."""
    await store.put("w/a", b"1")
    await store.put("x", b"1")
    async with contextlib.aclosing(store.watch("w/")) as watch:
        first = await anext(watch)
        assert isinstance(first, Snapshot)
        assert [("w/a", b"1")] == keys_and_values(first.entries)


async def test_a_watch_tells_every_change_in_order(store: Store) -> None:
    """Puts, deletes and ended leases come in order, each with its revision; foreign keys do not."""
    async with contextlib.aclosing(store.watch("w/")) as watch:
        await anext(watch)
        await store.put("w/a", b"1")
        await store.put("x", b"1")
        await store.put("w/a", b"2")
        await store.delete("w/a")
        async with store.lease(5) as lease:
            await store.put("w/b", b"3", lease.id)
        changes: list[Change] = []
        while len(changes) < 5:
            message = await anext(watch)
            assert isinstance(message, Changes)
            changes += message.changes
    expected = [("w/a", b"1"), ("w/a", b"2"), ("w/a", None), ("w/b", b"3"), ("w/b", None)]
    assert expected == keys_and_values(changes)
    assert sorted({change.mod_revision for change in changes}) == [change.mod_revision for change in changes]


async def test_the_changes_of_one_commit_come_in_one_message(store: Store) -> None:
    """A watcher never sees half a commit."""
    async with contextlib.aclosing(store.watch("w/")) as watch:
        await anext(watch)
        await store.commit([], [Put(f"w/{n:03d}", b"x") for n in range(100)])
        message = await anext(watch)
    assert isinstance(message, Changes)
    assert [f"w/{n:03d}" for n in range(100)] == sorted(change.key for change in message.changes)


async def test_a_slow_watcher_misses_nothing(store: Store) -> None:
    """What changes while the watcher is busy with a message comes afterwards."""
    seen: list[bytes | None] = []
    async with contextlib.aclosing(store.watch("w/")) as watch:
        await anext(watch)
        await store.put("w/a", b"0")
        async for message in watch:
            assert isinstance(message, Changes)
            seen += [change.value for change in message.changes]
            if len(seen) == 5:
                break
            await store.put("w/a", b"%d" % len(seen))
    assert [b"%d" % n for n in range(5)] == seen


async def test_a_delete_of_nothing_is_no_change(store: Store) -> None:
    """Deleting what is not there wakes no watcher."""
    async with contextlib.aclosing(store.watch("w/")) as watch:
        await anext(watch)
        await store.delete("w/a")
        await store.put("w/b", b"1")
        message = await anext(watch)
    assert isinstance(message, Changes)
    assert [("w/b", b"1")] == keys_and_values(message.changes)
