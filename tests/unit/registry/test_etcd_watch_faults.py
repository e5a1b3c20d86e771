"""A watch on a real etcd whose connection breaks, falls silent, or is away for longer than history is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.common.background import background
from services.common.config import ProcessConfig
from services.common.registry import etcd, etcd_wire
from tests.unit.registry.follower import Follower
from tests.unit.registry.stores import Stores

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer, Relay

    OpenRelay = Callable[[str], contextlib.AbstractAsyncContextManager[Relay]]

SILENCE: Final = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")


async def test_r_c6_a_silent_connection_is_given_up_and_the_watch_resumes(
    make_etcd: Callable[..., EtcdServer], stores: Stores, relay: OpenRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while nothing passes, and nothing says so, is told afterwards, and the lease is held.

    Fault injection: turns red when `etcd_wire` leaves pings a minute, as gRPC does, or the new watch begins with what
    comes, with no start_revision.
    """
    server = make_etcd("--grpc-keepalive-min-time=50ms")
    server.start()
    direct, follower = stores.open(server.endpoint), Follower()
    await direct.put("connected", b"x")
    _hurry(monkeypatch)
    renewed = _renewals(monkeypatch)
    async with relay(server.endpoint) as cable:
        store = stores.open(cable.endpoint)
        async with background(follower.follow(store)), store.lease(5) as lease:
            await follower.synced.wait()
            await store.put("w/0", b"x", lease.id)
            await follower.changed.wait()
            cable.swallow()
            for key in ("w/1", "w/2", "w/end"):
                await direct.put(key, b"x")
            renewed.clear()
            await follower.ended.wait()
            await renewed.wait()
            assert not lease.lost.is_set()
            assert await direct.get("w/0") is not None
    assert ["w/0", "w/1", "w/2", "w/end"] == [change.key for change in follower.changes][:4]
    assert 1 == len(follower.snapshots)


def test_a_silent_connection_is_given_up_before_a_lease_ends() -> None:
    """Whoever keeps a lease of the usual length has time to renew it on another one."""
    time_ms, *timeouts_ms = (dict(etcd_wire._OPTIONS)[name] for name in SILENCE)
    lease_ttl_s = ProcessConfig.model_fields["lease_ttl_s"].default
    assert time_ms + max(timeouts_ms) + 1_000 < lease_ttl_s * 1_000


async def test_r_c6_a_watch_cut_off_resumes_where_it_stopped(
    own_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """Changes made during a cut come after it, from the history, each once: no second snapshot.

    Fault injection: turns red when `etcd_watch` does not move on with its last event, or asks for no start_revision.
    """
    direct, follower = stores.open(own_etcd.endpoint), Follower()
    async with relay(own_etcd.endpoint) as cable, background(follower.follow(stores.open(cable.endpoint))):
        await follower.synced.wait()
        await direct.put("w/00", b"x")
        await follower.changed.wait()
        with cut(cable):
            for number in range(1, 20):
                await direct.put(f"w/{number:02d}", b"x")
            await direct.put("w/end", b"x")
        await follower.ended.wait()
        assert [*(f"w/{number:02d}" for number in range(20)), "w/end"] == [c.key for c in follower.changes]
        assert 1 == len(follower.snapshots)


async def test_a_watch_behind_compaction_begins_anew(
    own_etcd: EtcdServer, stores: Stores, relay: OpenRelay
) -> None:
    """Where the history since the cut is gone, a fresh snapshot replaces it."""
    direct, follower = stores.open(own_etcd.endpoint), Follower()
    async with relay(own_etcd.endpoint) as cable, background(follower.follow(stores.open(cable.endpoint))):
        await follower.synced.wait()
        with cut(cable):
            for number in range(20):
                await direct.put("w/a", b"%d" % number)
            revision = (await direct.list("")).revision
            await asyncio.to_thread(own_etcd.control, "compact", str(revision))
            follower.synced.clear()
        await follower.synced.wait()
        assert [("w/a", b"19")] == [entry[:2] for entry in follower.snapshots[-1].entries]
        await direct.put("w/end", b"x")
        await follower.ended.wait()
        assert ["w/end"] == [change.key for change in follower.changes]


def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time until a silent connection is given up."""
    options = [(name, value // 10 if name in SILENCE else value) for name, value in etcd_wire._OPTIONS]
    monkeypatch.setattr(etcd_wire, "_OPTIONS", options)


def _renewals(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set whenever etcd has renewed a lease."""
    renewed, renewal = asyncio.Event(), etcd._first_renewal

    async def noted(call: Any) -> Any:
        response = await renewal(call)
        renewed.set()
        return response

    monkeypatch.setattr(etcd, "_first_renewal", noted)
    return renewed


@contextlib.contextmanager
def cut(cable: Relay) -> Iterator[None]:
    """No connection stands or is made while the scope lasts."""
    cable.refuse = True
    cable.cut()
    yield
    cable.refuse = False
