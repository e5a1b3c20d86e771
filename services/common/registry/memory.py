"""The registry in this process's memory: one event loop, no durability, otherwise etcd's semantics."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from services.common.errors import PreconditionFailed, Unavailable
from services.common.registry.store import (
    LEASE_ENDED,
    Change,
    Changes,
    Delete,
    Entry,
    Head,
    Lease,
    LeaseId,
    Listing,
    Put,
    Snapshot,
    Unchanged,
)


class MemoryStore:
    """Implements `registry.store.Store`.

    A lease is held as long as its scope: `expire` ends one early, as if its holder had been silent too long.
    `outage` makes every call fail and stalls every watch, as if the servers were gone.
    """

    def __init__(self) -> None:
        self._revision = 1
        self._entries: dict[str, Entry] = {}
        self._leases: dict[LeaseId, Lease] = {}
        self._leased: dict[str, LeaseId] = {}
        self._next_lease = 1
        self._history: list[Change] = []
        self._compacted = self._revision  # changes up to this revision are no longer in the history
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._written = asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        await self._call()
        return self._entries.get(key)

    async def list(self, prefix: str) -> Listing:
        await self._call()
        return Listing(self._revision, self._under(prefix))

    async def head(self, prefix: str, most: int) -> Head:
        await self._call()
        present = self._under(prefix)
        return Head(len(present), present[:most])

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> None:
        await self.commit((), (Put(key, value, lease),))

    async def delete(self, key: str) -> None:
        await self.commit((), (Delete(key),))

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        await self._call()
        if not all(self._mod_revision(key) == expected for key, expected in conditions):
            return False
        self._check(writes)
        self._apply(writes)
        return True

    @contextlib.asynccontextmanager
    async def lease(self, ttl_s: int) -> AsyncIterator[Lease]:  # noqa: ARG002  # held as long as its scope
        await self._call()
        lease = Lease(LeaseId(self._next_lease), asyncio.Event())
        self._next_lease += 1
        self._leases[lease.id] = lease
        try:
            yield lease
        finally:
            self._end(lease.id)

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        position = -1
        while True:
            await self._reachable.wait()
            written, since, position = self._written, position, self._revision
            if since < self._compacted:
                yield Snapshot(self._under(prefix))
            elif changes := self._since(since, prefix):
                yield Changes(changes)
            await written.wait()

    def expire(self, lease_id: LeaseId) -> None:
        """Ends a lease: its keys vanish and its holder sees `lost`."""
        lease = self._leases[lease_id]
        self._end(lease_id)
        lease.lost.set()

    def compact(self) -> None:
        """Forgets all history: a watcher that is behind gets a Snapshot."""
        self._history.clear()
        self._compacted = self._revision

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """No call succeeds and no watch moves while the scope lasts; leases and data are kept."""
        self._reachable.clear()
        try:
            yield
        finally:
            self._reachable.set()

    async def _call(self) -> None:
        await asyncio.sleep(0)  # a point where others run, as a call over the wire has
        if not self._reachable.is_set():
            raise Unavailable("the registry does not answer", reason="REGISTRY_UNAVAILABLE", retry_after_s=1)

    def _under(self, prefix: str) -> tuple[Entry, ...]:
        return tuple(entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix))

    def _mod_revision(self, key: str) -> int:
        return self._entries[key].mod_revision if key in self._entries else 0

    def _since(self, revision: int, prefix: str) -> tuple[Change, ...]:
        start = bisect.bisect_right(self._history, revision, key=lambda change: change.mod_revision)
        return tuple(change for change in self._history[start:] if change.key.startswith(prefix))

    def _check(self, writes: Sequence[Put | Delete]) -> None:
        if len({write.key for write in writes}) < len(writes):
            raise ValueError("a commit writes each key at most once")
        for write in writes:
            if isinstance(write, Put) and write.lease is not None and write.lease not in self._leases:
                raise PreconditionFailed("the lease has ended; take a new one", reason=LEASE_ENDED)

    def _apply(self, writes: Sequence[Put | Delete]) -> None:
        effective = [write for write in writes if isinstance(write, Put) or write.key in self._entries]
        if not effective:
            return
        self._revision += 1
        for write in effective:
            self._write(write)
        written, self._written = self._written, asyncio.Event()
        written.set()

    def _write(self, write: Put | Delete) -> None:
        self._leased.pop(write.key, None)
        if isinstance(write, Delete):
            del self._entries[write.key]
            self._history.append(Change(write.key, None, self._revision))
            return
        self._entries[write.key] = Entry(write.key, write.value, self._revision)
        if write.lease is not None:
            self._leased[write.key] = write.lease
        self._history.append(Change(write.key, write.value, self._revision))

    def _end(self, lease_id: LeaseId) -> None:
        if self._leases.pop(lease_id, None):
            self._apply([Delete(key) for key, lease in self._leased.items() if lease == lease_id])
