"""A real registry, watched from its first word on: every transaction is held against what must hold of swaps."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, TypeVar

from services.common.background import background
from services.common.errors import Unavailable
from services.common.registry import keys
from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.record import Record
from services.common.registry.store import Change, Entry, Snapshot
from tests.simulation.registry_watch import RegistryWatch

R = TypeVar("R", bound=Record)
PREFIX: Final = "halogen/"
CATCH_UP_S: Final = 60.0


class RegistryObserver:
    """What stands in a registry, as far as has been heard.

    Args:
        store: The registry.
    """

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._values: dict[str, bytes] = {}
        self._invariants = RegistryWatch(lambda: ())
        self._news = asyncio.Condition()
        self._is_begun = False
        self._position = 0

    def records(self, prefix: str, kind: type[R]) -> Mapping[str, R]:
        """By key."""
        return {key: kind.decode(value) for key, value in self._values.items() if key.startswith(prefix)}

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Returns when it holds; asks after every transaction."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(condition)

    async def catch_up(self) -> None:
        """Returns once it has heard of every publish that was made before; insists on an answer of the registry."""
        while True:
            with contextlib.suppress(Unavailable):
                listing = await self._store.list(keys.REVISIONS)
                break
        last = max((entry.mod_revision for entry in listing.entries), default=0)
        await self.until(lambda: self._position >= last, CATCH_UP_S)

    async def follow(self) -> None:
        """Hears of everything; raises Broken at the first transaction that breaks an invariant."""
        async with contextlib.aclosing(self._store.watch("")) as messages:
            async for message in messages:
                if isinstance(message, Snapshot):
                    assert not self._is_begun, "a gap in what the registry tells"
                    self._is_begun = True
                    self._take(sorted(message.entries, key=lambda entry: entry.mod_revision))
                else:
                    self._take(message.changes)
                async with self._news:
                    self._news.notify_all()

    def _take(self, changes: Iterable[Change | Entry]) -> None:
        """Judges each transaction by itself: a message may bring several."""
        for _, together in itertools.groupby(changes, lambda change: change.mod_revision):
            transaction = tuple(Change(*change) for change in together)
            self._invariants.on_commit(transaction)
            for key, value, self._position in transaction:
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value


@contextlib.asynccontextmanager
async def observing(endpoint: str) -> AsyncIterator[RegistryObserver]:
    """Observes the registry at host:port while the scope lasts; an invariant that breaks ends the scope."""
    wire = EtcdWire(Access(endpoints=(endpoint,)))
    observer = RegistryObserver(EtcdStore(wire, PREFIX))
    try:
        async with background(observer.follow()):
            yield observer
    finally:
        await wire.close()
