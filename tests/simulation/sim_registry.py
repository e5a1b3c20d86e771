"""The registry of the simulation: a log of transactions, of which every watch hears when it is told to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from services.common.errors import Unavailable
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
    Unchanged,
)
from tests.simulation.turn import turn


class Heard(NamedTuple):
    """What a watch hears next, and how far it is then."""

    message: Snapshot | Changes | None
    position: int


class SimRegistry:
    """Implements `registry.store.Store`, but for leases and watches, which the simulation moves by hand.

    Attributes:
        entries: What stands.
        is_away: No call is answered and no watch moves.
        cut: What becomes of the next transaction, of which its writer is told nothing: "before", "after" or "" for
            nothing of the kind.
        on_commit: Called with what each transaction has changed, after it has.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.is_away = False
        self.cut = ""
        self.on_commit: Callable[[tuple[Change, ...]], None] = lambda _: None
        self._log: list[tuple[Change, ...]] = [()]  # by the store's revision
        self._compacted = 0
        self._leased: dict[str, LeaseId] = {}

    @property
    def revision(self) -> int:
        return len(self._log) - 1

    async def get(self, key: str) -> Entry | None:
        await self._call()
        return self.entries.get(key)

    async def list(self, prefix: str) -> Listing:
        await self._call()
        return Listing(self.revision, self._under(prefix))

    async def head(self, prefix: str, most: int) -> Head:
        await self._call()
        present = self._under(prefix)
        return Head(len(present), present[:most])

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> None:
        await self.commit((), (Put(key, value, lease),))

    async def delete(self, key: str) -> None:
        await self.commit((), (Delete(key),))

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        assert len({each.key for each in writes}) == len(writes), "each key at most once"
        await self._call()
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise Ambiguous("cut")
        holds = all(self._mod_revision(key) == expected for key, expected in conditions)
        if holds:
            self.write(writes)
        if cut:
            raise Ambiguous("cut")
        return holds

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        raise NotImplementedError

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        raise NotImplementedError

    def write(self, writes: Sequence[Put | Delete]) -> None:
        """Applies a transaction."""
        self._log.append(())
        self._log[-1] = tuple(self._write(each) for each in writes)
        self.on_commit(self._log[-1])

    def expire(self, lease: LeaseId) -> None:
        """Ends a lease: what is written under it vanishes."""
        if gone := [Delete(key) for key, holder in self._leased.items() if holder == lease]:
            self.write(gone)

    def compact(self) -> None:
        """Forgets all history: watches that are behind hear everything that stands anew."""
        self._compacted = self.revision

    def after(self, position: int, prefix: str, most: int) -> Heard:
        """What a watch that is so far hears next: the changes of at most so many transactions, or all that stands."""
        if position < self._compacted or position < 0:
            return Heard(Snapshot(self._under(prefix)), self.revision)
        until, changes = position, list[Change]()
        while until < self.revision and most:
            until += 1
            concerned = [each for each in self._log[until] if each.key.startswith(prefix)]
            changes += concerned
            most -= bool(concerned)
        return Heard(Changes(tuple(changes)) if changes else None, until)

    async def _call(self) -> None:
        await turn()
        if self.is_away:
            raise Unavailable("the registry does not answer")

    def _under(self, prefix: str) -> tuple[Entry, ...]:
        return tuple(entry for key, entry in sorted(self.entries.items()) if key.startswith(prefix))

    def _mod_revision(self, key: str) -> int:
        return self.entries[key].mod_revision if key in self.entries else 0

    def _write(self, write: Put | Delete) -> Change:
        self._leased.pop(write.key, None)
        if isinstance(write, Delete):
            self.entries.pop(write.key, None)
            return Change(write.key, None, self.revision)
        self.entries[write.key] = Entry(write.key, write.value, self.revision)
        if write.lease is not None:
            self._leased[write.key] = write.lease
        return Change(write.key, write.value, self.revision)
