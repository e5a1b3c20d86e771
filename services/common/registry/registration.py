"""A process's own record in the registry, there for as long as the process is."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Generic, Self, TypeVar

import structlog

from services.common.background import background
from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.ids import InstanceId
from services.common.registry.contact import RegistryContact
from services.common.registry.records import ProcessRecord
from services.common.registry.store import LEASE_ENDED, Changes, Lease, Snapshot, Store

R = TypeVar("R", bound=ProcessRecord)

log = structlog.get_logger()


class Registration(Generic[R]):
    """Keeps a leased key for as long as its scope lasts, and deletes it at the end.

    It works in the background and never fails its owner: while the registry is away it keeps trying, a lost lease is
    taken anew, and a registry that comes back without the record, or with an older one, is told again. A record of
    another process of the same name is left alone: a successor writes it.

    Args:
        store: The registry.
        key: The process's key.
        ttl_s: Seconds after which the record of a silent process vanishes.
        record: What to say first.
        contact: Told how it goes.
    """

    def __init__(
        self, store: Store, key: str, ttl_s: int, record: R, contact: RegistryContact | None = None
    ) -> None:
        self._contact = contact or RegistryContact()
        self._store = store
        self._key = key
        self._ttl_s = ttl_s
        self._record = record
        self._written: R | None = None  # under the lease that is held
        self._others: set[InstanceId] = set()  # that were told of
        self._wake = asyncio.Event()  # the record has changed, or the lease is lost
        self._backoff = Backoff()
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._scope.enter_async_context(background(self._hold()))
        await self._scope.enter_async_context(background(self._look_after()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, value, trace)

    @property
    def record(self) -> R:
        return self._record

    def update(self, record: R) -> None:
        """Replaces the record; it is written soon, and only the latest of several is."""
        self._record = record
        self._wake.set()

    async def _hold(self) -> None:
        while True:
            try:
                await self._hold_one_lease()
            except HalogenError as failure:
                self._contact.lost(str(failure))
            await self._backoff.pause()

    async def _hold_one_lease(self) -> None:
        async with self._store.lease(self._ttl_s) as lease, background(self._wake_when_lost(lease)):
            self._written = None
            while not lease.lost.is_set():
                self._wake.clear()
                if self._record != self._written:
                    self._written = await self._write(lease)
                await self._wake.wait()
        self._contact.lost("the lease on this process's record has ended")

    async def _wake_when_lost(self, lease: Lease) -> None:
        await lease.lost.wait()
        self._wake.set()

    async def _write(self, lease: Lease) -> R | None:
        """What has been written: the record, or nothing if it should be tried again, as the registry is away or full.

        Until then what was written before stands: it is better than nothing.
        """
        record = self._record
        try:
            await self._store.put(self._key, record.encode(), lease.id)
        except HalogenError as failure:
            if failure.reason == LEASE_ENDED:
                raise
            self._contact.lost(str(failure))
            await self._backoff.pause()
            self._wake.set()
            return None
        self._backoff.reset()
        self._contact.regained()
        return record

    async def _look_after(self) -> None:
        """Minds what becomes of the record once it is written."""
        async with contextlib.aclosing(self._store.watch(self._key)) as messages:
            async for message in messages:
                if isinstance(message, Snapshot):
                    self._compare(message)
                else:
                    self._look_for_others(message)

    def _compare(self, snapshot: Snapshot) -> None:
        """Has the record written anew where the registry has another one of this instance, or none."""
        standing = next((entry.value for entry in snapshot.entries if entry.key == self._key), None)
        if self._written is None or (standing is not None and self._other(standing)):
            return
        if standing != self._written.encode():
            self._written = None
            self._wake.set()

    def _look_for_others(self, changes: Changes) -> None:
        """Tells, once, of another process that has taken the name while this one lives."""
        for key, value, _ in changes.changes:
            other = self._other(value) if key == self._key and value is not None else None
            if other and other.instance_id not in self._others:
                self._others.add(other.instance_id)
                log.warning(
                    "registry_name_taken",
                    key=key,
                    other_address=other.address,
                    why="another process has the same name, and only one of them is seen; give each its own --id",
                )

    def _other(self, value: bytes) -> R | None:
        """The record, if it is another instance's."""
        try:
            record = type(self._record).decode(value)
        except ValueError:
            return None
        return record if record.instance_id != self._record.instance_id else None
