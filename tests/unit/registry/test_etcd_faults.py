"""The registry in a real etcd that dies, hangs, loses answers and compacts."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from services.common.background import background
from services.common.errors import Overloaded, Unavailable
from services.common.registry.store import Ambiguous, Put, Unchanged
from tests.unit.registry.follower import Follower
from tests.unit.registry.stores import Stores

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer, Relay

    OpenRelay = Callable[[str], contextlib.AbstractAsyncContextManager[Relay]]


async def insist(write: Callable[[], Awaitable[object]]) -> None:
    """Repeats a write until etcd takes it."""
    while True:
        with contextlib.suppress(Unavailable):
            await write()
            return


async def test_a_watch_and_a_lease_live_through_kill_9_and_restart(
    own_etcd: EtcdServer, stores: Stores
) -> None:
    """Every stored write is told once and in order, and the lease is still held."""
    store, follower = stores.open(own_etcd.endpoint), Follower()
    async with background(follower.follow(store)), store.lease(5) as lease:
        await follower.synced.wait()
        await store.put("lease", b"1", lease.id)
        for number in range(300):
            if number == 150:
                own_etcd.kill()
                own_etcd.start()
            with contextlib.suppress(Unavailable):
                await store.put(f"w/{number:03d}", b"x")
        await insist(lambda: store.put("w/end", b"x"))
        await follower.ended.wait()
        stored = sorted((await store.list("w/")).entries, key=lambda entry: entry.mod_revision)
        assert len(stored) >= 299
        assert [entry[:] for entry in stored] == [change[:] for change in follower.changes]
        assert 1 == len(follower.snapshots)
        assert not lease.lost.is_set()
        assert await store.get("lease") is not None


async def test_a_watch_waits_for_an_etcd_that_is_not_there_yet(
    make_etcd: Callable[..., EtcdServer], stores: Stores
) -> None:
    """A watch begun before etcd is up gets its snapshot once it is."""
    server, follower = make_etcd(), Follower()
    store = stores.open(server.endpoint, timeout_s=0.3)
    async with background(follower.follow(store)):
        with pytest.raises(Unavailable) as refused:
            await store.get("a")
        assert "REGISTRY_UNAVAILABLE" == refused.value.reason
        server.start()
        await follower.synced.wait()


async def test_a_lease_is_lost_when_etcd_stays_away(own_etcd: EtcdServer, stores: Stores) -> None:
    """Unrenewed for its whole time it counts as lost, and it is not revoked: its key passes on without a gap."""
    store, follower = stores.open(own_etcd.endpoint, timeout_s=0.5), Follower()
    async with background(follower.follow(store)):
        await follower.synced.wait()
        async with store.lease(2) as lease:
            await store.put("w/a", b"1", lease.id)
            own_etcd.kill()
            await lease.lost.wait()
            own_etcd.start()
            await insist(lambda: store.get("w/a"))
        async with store.lease(5) as successor:
            await store.put("w/a", b"2", successor.id)
            await store.put("w/end", b"x")
            await follower.ended.wait()
            assert [b"1", b"2", b"x"] == [change.value for change in follower.changes]


async def test_a_dead_endpoint_is_passed_over(
    shared_etcd: EtcdServer, stores: Stores, make_etcd: Callable[..., EtcdServer]
) -> None:
    """With one of two endpoints dead, every call is answered by the other."""
    dead = make_etcd()
    store, follower = stores.open(dead.endpoint, shared_etcd.endpoint), Follower()
    async with background(follower.follow(store)), store.lease(5) as lease:
        await follower.synced.wait()
        await store.put("w/end", b"1", lease.id)
        await follower.ended.wait()


async def test_a_hanging_endpoint_is_left(shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay) -> None:
    """An endpoint that takes requests and never answers costs one try, then the next one is asked."""
    async with relay(shared_etcd.endpoint) as hung:
        store = stores.open(hung.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.put("a", b"1")
        hung.drop_requests = True
        entry = await store.get("a")
        assert entry is not None
        assert b"1" == entry.value


async def test_a_put_whose_answer_was_lost_is_read_back(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """The write was applied, a read shows it: no doubt is left to the caller."""
    async with relay(shared_etcd.endpoint) as lossy:
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.get("a")
        lossy.drop_answers = True
        await store.put("a", b"fresh")
        entry = await store.get("a")
        assert entry is not None
        assert b"fresh" == entry.value


async def test_a_put_that_was_lost_is_ambiguous(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """The request may still be under way, so the caller is told of the doubt."""
    async with relay(shared_etcd.endpoint) as lossy:
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.get("a")
        lossy.drop_requests = True
        with pytest.raises(Ambiguous):
            await store.put("a", b"never arrives")


async def test_a_delete_whose_answer_was_lost_is_read_back(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """The key is gone, so the delete has been done."""
    async with relay(shared_etcd.endpoint) as lossy:
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.put("a", b"1")
        lossy.drop_answers = True
        await store.delete("a")
        assert await store.get("a") is None


@pytest.mark.parametrize("lost", ["drop_answers", "drop_requests"])
async def test_a_guarded_commit_is_applied_once_whatever_was_lost(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay, lost: str
) -> None:
    """A commit that compares a key it writes is sent again, and knows its own earlier try."""
    async with relay(shared_etcd.endpoint) as lossy:
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.put("guarded", b"old")
        seen = await store.get("guarded")
        assert seen is not None
        setattr(lossy, lost, True)
        writes = [Put("guarded", b"new"), Put("beside", b"new")]
        assert await store.commit([Unchanged("guarded", seen.mod_revision)], writes)
        assert not await store.commit([Unchanged("guarded", seen.mod_revision)], writes)


async def test_an_unguarded_commit_whose_answer_was_lost_is_ambiguous(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """Sent again it could be applied twice, so the caller is told of the doubt."""
    async with relay(shared_etcd.endpoint) as lossy:
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.2)
        await store.get("a")
        lossy.drop_answers = True
        with pytest.raises(Ambiguous):
            await store.commit([Unchanged("elsewhere", 0)], [Put("a", b"1")])


async def test_a_doubted_commit_that_was_overwritten_is_ambiguous(
    shared_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """When another has written since, nobody can tell whose commit came first."""
    other, follower = stores.open(shared_etcd.endpoint), Follower()
    async with relay(shared_etcd.endpoint) as lossy, background(follower.follow(other)):
        store = stores.open(lossy.endpoint, shared_etcd.endpoint, try_timeout_s=0.5)
        await store.delete("w/end")
        await follower.synced.wait()
        lossy.drop_answers = True

        async def overwrite() -> None:
            await follower.ended.wait()
            await other.put("w/end", b"theirs")

        async with background(overwrite()):
            with pytest.raises(Ambiguous):
                await store.commit([Unchanged("w/end", 0)], [Put("w/end", b"ours")])


async def test_a_full_etcd_refuses_writes_and_serves_reads(
    make_etcd: Callable[..., EtcdServer], stores: Stores
) -> None:
    """NOSPACE is told as what it is, and what is stored can still be read."""
    server = make_etcd("--quota-backend-bytes=200000")
    server.start()
    store = stores.open(server.endpoint)
    await store.put("small", b"1")

    async def fill() -> None:
        while True:
            await store.put("big", b"x" * 10_000)

    with pytest.raises(Overloaded) as refused:
        await fill()
    assert "REGISTRY_FULL" == refused.value.reason
    assert await store.get("small") is not None
