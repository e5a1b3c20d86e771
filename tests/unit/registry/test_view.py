"""The live mirror of a prefix."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import structlog

from services.common.ids import ArtifactId, Revision
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.memory import MemoryStore
from services.common.registry.records import Serving
from services.common.registry.view import View


def serving(revision: int) -> Serving:
    return Serving(revision=Revision(revision), artifact_id=ArtifactId("a"))


async def until(view: View[Serving], expected: dict[str, Serving]) -> None:
    """Returns when the view holds `expected`."""
    async with contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            if view.records == expected:
                return


async def test_a_view_holds_what_was_there_and_what_comes() -> None:
    """Records of before and after its start are in it, decoded; deleted ones are not."""
    store = MemoryStore()
    await store.put("serving/m/stable", serving(1).encode())
    async with View(store, keys.SERVING, Serving) as view:
        await view.synced()
        assert {"serving/m/stable": serving(1)} == view.records
        await store.put("serving/m/canary", serving(2).encode())
        await until(view, {"serving/m/stable": serving(1), "serving/m/canary": serving(2)})
        await store.delete("serving/m/stable")
        await until(view, {"serving/m/canary": serving(2)})


async def test_an_unsynced_view_says_so() -> None:
    """Entering does not wait for the registry, and an empty view is told from one that has heard nothing."""
    store = MemoryStore()
    async with View(store, keys.SERVING, Serving) as view:
        with store.outage():
            before = view.is_synced
        await view.synced()
        assert (False, True) == (before, view.is_synced)
        assert {} == view.records


async def test_changes_begin_at_once_when_synced() -> None:
    """A consumer that comes late hears of the present before the next change."""
    async with View(MemoryStore(), keys.SERVING, Serving) as view:
        await view.synced()
        async with contextlib.aclosing(view.changes()) as changes:
            await anext(changes)


async def test_changes_of_a_busy_time_come_as_one() -> None:
    """A consumer that was busy is told once, and finds the latest."""
    store = MemoryStore()
    async with View(store, keys.SERVING, Serving) as view, contextlib.aclosing(view.changes()) as changes:
        await anext(changes)
        for revision in range(1, 10):
            await store.put("serving/m/stable", serving(revision).encode())
        await until(view, {"serving/m/stable": serving(9)})
        await anext(changes)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(changes)


async def test_two_consumers_hear_the_same_changes() -> None:
    """Each consumer has its own place."""
    store = MemoryStore()
    async with View(store, keys.SERVING, Serving) as view:
        await store.put("serving/m/stable", serving(1).encode())
        await asyncio.gather(*(until(view, {"serving/m/stable": serving(1)}) for _ in range(2)))


@pytest.mark.parametrize("value", [b"not json", b"{}", b'{"revision": "x", "artifact_id": 1}'])
async def test_a_value_that_is_no_record_is_passed_over(value: bytes) -> None:
    """It is logged and the last good record stands; other keys are followed as before."""
    store = MemoryStore()
    await store.put("serving/m/stable", serving(1).encode())
    await store.put("serving/x/stable", value)
    with structlog.testing.capture_logs() as logs:
        async with View(store, keys.SERVING, Serving) as view:
            await view.synced()
            await store.put("serving/m/stable", value)
            await store.put("serving/n/stable", serving(2).encode())
            await until(view, {"serving/m/stable": serving(1), "serving/n/stable": serving(2)})
    events = [(entry["event"], entry["key"]) for entry in logs]
    invalid = "registry_record_invalid"
    assert [(invalid, "serving/x/stable"), (invalid, "serving/m/stable")] == events


@pytest.mark.parametrize("key", ["serving/m/shadow", "serving/m", "serving/m/stable/1"])
async def test_a_key_that_cannot_be_read_is_passed_over_once(key: str) -> None:
    """Somebody else's, or of a cohort that a newer version knows: it is logged, once, and what is read goes on.

    Nor is it missed when it goes. Fault injection: turns red when `_decode` checks no keys, or `_forget` tells of
    whatever goes.
    """
    store, contact = MemoryStore(), RegistryContact()
    await store.put(key, serving(1).encode())
    with structlog.testing.capture_logs() as logs:
        async with View(store, keys.SERVING, Serving, keeps=True, contact=contact) as view:
            await view.synced()
            with store.outage():
                store.compact()
            await store.put("serving/m/stable", serving(1).encode())
            await until(view, {"serving/m/stable": serving(1)})
            await store.delete(key)
            await store.put("serving/m/stable", serving(2).encode())
            await until(view, {"serving/m/stable": serving(2)})
    assert [("registry_record_invalid", key)] == [(entry["event"], entry["key"]) for entry in logs]
    assert "" == contact.stale


async def test_a_fresh_snapshot_replaces_what_was_there() -> None:
    """After a gap, keys that vanished meanwhile are gone from the view."""
    store = MemoryStore()
    await store.put("serving/m/stable", serving(1).encode())
    await store.put("serving/n/stable", serving(1).encode())
    async with View(store, keys.SERVING, Serving) as view:
        await view.synced()
        async with store.lease(5) as lease:
            await store.put("serving/n/stable", serving(2).encode(), lease.id)
            await until(view, {"serving/m/stable": serving(1), "serving/n/stable": serving(2)})
            with store.outage():
                store.expire(lease.id)
                store.compact()
            await until(view, {"serving/m/stable": serving(1)})


async def test_a_view_that_keeps_lets_nothing_go_for_being_gone() -> None:
    """A registry that lost its data says nothing; what it says anew counts.

    Fault injection: ignore `keeps` in `View._forget`.
    """
    store = MemoryStore()
    await store.put("serving/m/stable", serving(7).encode())
    async with View(store, keys.SERVING, Serving, keeps=True) as view:
        await view.synced()
        await store.delete("serving/m/stable")
        await store.put("serving/m/canary", serving(1).encode())
        await until(view, {"serving/m/stable": serving(7), "serving/m/canary": serving(1)})
        await store.put("serving/m/stable", serving(8).encode())
        await until(view, {"serving/m/stable": serving(8), "serving/m/canary": serving(1)})


async def test_a_view_that_keeps_goes_back_to_no_older_revision() -> None:
    """A registry restored from a backup says less than it did: that is stale, and logged once, until something newer comes.

    Fault injection: turns red when `_goes_back` always says no, or `_decode` takes what goes back for being there.
    """
    store, contact = MemoryStore(), RegistryContact()
    await store.put("serving/m/stable", serving(3).encode())
    with structlog.testing.capture_logs() as logs:
        async with View(store, keys.SERVING, Serving, keeps=True, contact=contact) as view:
            await view.synced()
            await store.put("serving/m/stable", serving(2).encode())
            await store.put("serving/m/canary", serving(1).encode())
            await until(view, {"serving/m/stable": serving(3), "serving/m/canary": serving(1)})
            await store.put("serving/m/canary", serving(4).encode())
            store.compact()
            await until(view, {"serving/m/stable": serving(3), "serving/m/canary": serving(4)})
            assert "serving/m/stable has gone back to an older revision in the registry" == contact.stale
            await store.put("serving/m/stable", serving(5).encode())
            await until(view, {"serving/m/stable": serving(5), "serving/m/canary": serving(4)})
            assert "" == contact.stale
    assert ["registry_record_gone_back"] == [entry["event"] for entry in logs]


async def test_of_a_group_only_the_last_record_is_held() -> None:
    """What came before it is let go, in a snapshot and after, an older one that is written anew stays out.

    Fault injection: turns red when `_is_last` always says yes.
    """
    store = MemoryStore()
    for number, name in enumerate(("a/1", "a/2", "b/1"), start=1):
        await store.put(f"audit/{name}", serving(number).encode())
    async with View(store, keys.AUDIT, Serving, group_of=lambda key, _: key.split("/")[1]) as view:
        await view.synced()
        assert {"audit/a/2": serving(2), "audit/b/1": serving(3)} == view.records
        await store.put("audit/a/1", serving(4).encode())
        await store.put("audit/a/3", serving(5).encode())
        await until(view, {"audit/a/3": serving(5), "audit/b/1": serving(3)})
        await store.delete("audit/a/3")
        await until(view, {"audit/b/1": serving(3)})
        await store.put("audit/a/4", serving(6).encode())
        await until(view, {"audit/a/4": serving(6), "audit/b/1": serving(3)})
