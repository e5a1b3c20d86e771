"""The registry in etcd."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from aetcd import rpc

from services.common.background import background
from services.common.backoff import Backoff
from services.common.config import ProcessConfig
from services.common.errors import HalogenError, InvalidRequest, Unavailable
from services.common.registry.etcd_watch import KeyRange, follow
from services.common.registry.etcd_wire import RETRY_PAUSE_S, Access, Compacted, Connection, EtcdWire, Tls
from services.common.registry.store import (
    Ambiguous,
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
    Store,
    Unchanged,
)

PAGE_ENTRIES: Final = 500
REVOKE_LIMIT_S: Final = 1.0
TRIES: Final = 3  # of a write that is safe to send again

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def open_store(config: ProcessConfig) -> AsyncIterator[Store]:
    """The registry that `config` names. It opens at once, whether etcd answers or not.

    Raises:
        InvalidRequest: A password or certificate file cannot be read.
    """
    wire = EtcdWire(_access(config))
    try:
        yield EtcdStore(wire, config.etcd_prefix)
    finally:
        await wire.close()


def _access(config: ProcessConfig) -> Access:
    ca, cert, key, password = map(
        _read,
        (config.etcd_ca_file, config.etcd_cert_file, config.etcd_key_file, config.etcd_password_file),
    )
    return Access(
        endpoints=tuple(endpoint.rpartition("://")[2] for endpoint in config.etcd),
        tls=Tls(ca=ca, cert=cert, key=key) if ca else None,
        user=config.etcd_user,
        password=(password or b"").decode().strip(),
    )


def _read(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as failure:
        raise InvalidRequest(f"{path}: {failure.strerror}; see the --etcd-*-file settings") from failure


class EtcdStore:
    """Implements `registry.store.Store` over etcd's v3 API.

    Args:
        wire: How etcd is reached.
        prefix: Goes before every key on the wire.
    """

    def __init__(self, wire: EtcdWire, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix.encode()

    async def get(self, key: str) -> Entry | None:
        pairs = await self._pairs(key)
        return self._entry(pairs[0]) if pairs else None

    async def list(self, prefix: str) -> Listing:
        while True:
            try:
                return await self._list(KeyRange.under(self._full(prefix)))
            except Compacted:  # between two pages: begin again
                continue

    async def head(self, prefix: str, most: int) -> Head:
        keys = KeyRange.under(self._full(prefix))
        request = rpc.RangeRequest(key=keys.start, range_end=keys.end, limit=most)
        page = await self._wire.call(lambda etcd: etcd.kv.Range, request)
        return Head(page.count, tuple(self._entry(pair) for pair in page.kvs))

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> None:
        request = rpc.PutRequest(key=self._full(key), value=value, lease=lease or 0)
        try:
            await self._wire.call(lambda etcd: etcd.kv.Put, request, writes=True)
        except Ambiguous:
            found = await self._read_back(key)
            if not found or (found[0].value, found[0].lease) != (value, lease or 0):
                raise

    async def delete(self, key: str) -> None:
        request = rpc.DeleteRangeRequest(key=self._full(key))
        try:
            await self._wire.call(lambda etcd: etcd.kv.DeleteRange, request, writes=True)
        except Ambiguous:
            if await self._read_back(key):
                raise

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if len({write.key for write in writes}) < len(writes):
            raise ValueError("a commit writes each key at most once")
        request = rpc.TxnRequest(
            compare=[self._compare(condition) for condition in conditions],
            success=[self._operation(write) for write in writes],
            failure=[self._reading(write.key) for write in writes],
        )
        guarded = not {condition.key for condition in conditions}.isdisjoint(write.key for write in writes)
        response, doubted = await self._commit(request, guarded)
        return bool(response.succeeded) or (doubted and _was_applied(response, writes))

    @contextlib.asynccontextmanager
    async def lease(self, ttl_s: int) -> AsyncIterator[Lease]:
        granted = await self._grant(ttl_s)
        lease = Lease(LeaseId(granted.ID), asyncio.Event())
        try:
            async with background(self._keep_alive(lease, granted.TTL)):
                yield lease
        finally:
            if not lease.lost.is_set():  # else a successor may already hold its keys, or shall without a gap
                await self._revoke(lease)

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        backoff, keys = Backoff(), KeyRange.under(self._full(prefix))
        while True:
            try:
                listing = await self.list(prefix)
            except HalogenError as failure:
                log.warning("registry_watch_waits", prefix=prefix, error=str(failure))
            else:
                backoff.reset()
                yield Snapshot(listing.entries)
                async with contextlib.aclosing(follow(self._wire, keys, listing.revision + 1)) as batches:
                    async for events in batches:
                        yield Changes(tuple(self._change(event) for event in events))
            await backoff.pause()

    # -- calls

    async def _pairs(self, key: str) -> Sequence[Any]:
        """The pair at `key`, if there is one."""
        request = rpc.RangeRequest(key=self._full(key))
        return (await self._wire.call(lambda etcd: etcd.kv.Range, request)).kvs  # type: ignore[no-any-return]  # aetcd carries no types

    async def _list(self, keys: KeyRange) -> Listing:
        """Page by page, all at the first page's revision."""
        revision, start, entries = 0, keys.start, []
        while True:
            request = rpc.RangeRequest(key=start, range_end=keys.end, revision=revision, limit=PAGE_ENTRIES)
            page = await self._wire.call(lambda etcd: etcd.kv.Range, request)
            revision = revision or page.header.revision
            entries += [self._entry(pair) for pair in page.kvs]
            if not page.more:
                return Listing(revision, tuple(entries))
            start = page.kvs[-1].key + b"\0"

    async def _read_back(self, key: str) -> Sequence[Any]:
        """What stands at `key` after an ambiguous write."""
        try:
            return await self._pairs(key)
        except Unavailable as failure:
            raise Ambiguous("the registry went away during a write; read back later") from failure

    async def _commit(self, request: Any, guarded: bool) -> tuple[Any, bool]:
        """The answer, and whether an earlier try of the same commit may have been applied before it.

        A guarded commit changes a key that its own conditions look at, so it cannot be applied twice.
        """
        doubted = False
        for _ in range(TRIES):
            try:
                return await self._wire.call(lambda etcd: etcd.kv.Txn, request, writes=True), doubted
            except Ambiguous:
                if not guarded:
                    raise
                doubted = True
            except Unavailable as failure:
                if doubted:
                    raise Ambiguous("the registry went away during a commit; read back later") from failure
                raise
        raise Ambiguous("the registry's answers to a commit were lost; read back")

    async def _grant(self, ttl_s: int) -> Any:
        """Takes a lease; one that was granted unheard ends by itself."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        for _ in range(TRIES):
            with contextlib.suppress(Ambiguous):
                return await self._wire.call(lambda etcd: etcd.leases.LeaseGrant, request, writes=True)
        raise Unavailable("the registry's answers to a lease grant were lost", retry_after_s=1.0)

    async def _keep_alive(self, lease: Lease, ttl_s: float) -> None:
        """Renews the lease every third of its time; sets `lost` when it has ended."""
        request = rpc.LeaseKeepAliveRequest(ID=lease.id)
        expires = time.monotonic() + ttl_s
        await asyncio.sleep(ttl_s / 3)
        while (started := time.monotonic()) < expires:
            limit_s = min(ttl_s / 3, expires - started)
            try:
                response = await self._wire.call(_renewal, request, limit_s=limit_s, try_limit_s=ttl_s / 4)
            except HalogenError as failure:
                log.warning("registry_lease_unheard", left_s=expires - time.monotonic(), error=str(failure))
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            if response.TTL <= 0:
                break
            expires = started + response.TTL
            await asyncio.sleep(response.TTL / 3)
        lease.lost.set()

    async def _revoke(self, lease: Lease) -> None:
        """Gives the lease back; where etcd is away it ends by itself."""
        request = rpc.LeaseRevokeRequest(ID=lease.id)
        with contextlib.suppress(HalogenError):
            await self._wire.call(lambda etcd: etcd.leases.LeaseRevoke, request, limit_s=REVOKE_LIMIT_S)

    # -- translation

    def _full(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _relative(self, key: bytes) -> str:
        return key.removeprefix(self._prefix).decode()

    def _entry(self, pair: Any) -> Entry:
        return Entry(self._relative(pair.key), pair.value, pair.mod_revision)

    def _change(self, event: Any) -> Change:
        value = None if event.type == rpc.Event.DELETE else event.kv.value
        return Change(self._relative(event.kv.key), value, event.kv.mod_revision)

    def _compare(self, condition: Unchanged) -> Any:
        return rpc.Compare(
            key=self._full(condition.key),
            target=rpc.Compare.MOD,
            result=rpc.Compare.EQUAL,
            mod_revision=condition.mod_revision,
        )

    def _operation(self, write: Put | Delete) -> Any:
        key = self._full(write.key)
        if isinstance(write, Delete):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease or 0))

    def _reading(self, key: str) -> Any:
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=self._full(key)))


async def _first_renewal(call: Any) -> Any:
    try:
        async for response in call:
            return response
    finally:
        call.cancel()
    raise Unavailable("etcd ended a lease's renewal without an answer")


def _renewal(etcd: Connection) -> Any:
    """LeaseKeepAlive as a call with one answer: a stream of one request."""
    return lambda request, **limits: _first_renewal(etcd.leases.LeaseKeepAlive(iter([request]), **limits))


def _was_applied(response: Any, writes: Sequence[Put | Delete]) -> bool:
    """Whether an earlier, unheard try of a guarded commit did its writes, by what stands now in their place.

    Raises:
        Ambiguous: Something else stands there: another's commit, before ours or over it.
    """
    found = [list(part.response_range.kvs) for part in response.responses]
    values = [pairs[0].value if pairs else None for pairs in found]
    revisions = {pair.mod_revision for pairs in found for pair in pairs}
    if (
        values == [write.value if isinstance(write, Put) else None for write in writes]
        and len(revisions) <= 1
    ):
        return True
    raise Ambiguous("the registry's answer to a commit was lost and the keys have moved on; read back")
