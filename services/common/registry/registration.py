"""A process's own record in the registry, there for as long as the process is."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Generic, Self, TypeVar

from services.common.background import background
from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.registry.contact import RegistryContact
from services.common.registry.record import Record
from services.common.registry.store import LEASE_ENDED, Lease, Store

R = TypeVar("R", bound=Record)


class Registration(Generic[R]):
    """Keeps a leased key for as long as its scope lasts, and deletes it at the end.

    It works in the background and never fails its owner: while the registry is away it keeps trying, and a
    lost lease is taken anew.

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
        self._wake = asyncio.Event()  # the record has changed, or the lease is lost
        self._backoff = Backoff()
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._scope.enter_async_context(background(self._hold()))
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
            written: R | None = None
            while not lease.lost.is_set():
                self._wake.clear()
                if self._record != written:
                    written = await self._write(lease)
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
