"""The port to the registry: what any store of shared facts must do. `etcd.py` and `memory.py` implement it.

Keys are text, relative to the environment's prefix, which the store adds and strips. Values are bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, NewType, Protocol

from services.common.errors import Unavailable

LEASE_ENDED: Final = "LEASE_ENDED"

LeaseId = NewType("LeaseId", int)


class Ambiguous(Unavailable):
    """The connection broke after a write was sent: it may or may not have been applied. Read back."""

    default_reason = "REGISTRY_AMBIGUOUS"


class Entry(NamedTuple):
    key: str
    value: bytes
    mod_revision: int  # the store's revision of the last write to this key, at least 1


class Listing(NamedTuple):
    """All pairs under a prefix, as they stood together at one revision of the store."""

    revision: int
    entries: tuple[Entry, ...]


class Head(NamedTuple):
    """The first pairs under a prefix, in the order of their keys, and how many there are in all."""

    total: int
    entries: tuple[Entry, ...] = ()


class Put(NamedTuple):
    key: str
    value: bytes
    lease: LeaseId | None = None


class Delete(NamedTuple):
    key: str


class Unchanged(NamedTuple):
    """A condition: the key's last write is `mod_revision`; 0 means that the key does not exist."""

    key: str
    mod_revision: int


class Change(NamedTuple):
    """One event: a new value, or None where the key was deleted or its lease ended."""

    key: str
    value: bytes | None
    mod_revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole prefix: replaces whatever the watcher held before."""

    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What changed since the last message, in order, without gap or repeat."""

    changes: tuple[Change, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """A right to keys that vanish with their holder.

    Attributes:
        lost: Set when the lease has ended although its scope has not: register anew.
    """

    id: LeaseId
    lost: asyncio.Event


class Store(Protocol):
    """Every method raises Unavailable when no endpoint answers in time; writes may raise Ambiguous.

    `put` and `delete` are ambiguous only while a read does not show their outcome, and `commit` only where no
    condition is on a key that it writes. A write under a lease that has ended raises PreconditionFailed
    (reason LEASE_ENDED).
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Listing: ...

    async def head(self, prefix: str, most: int) -> Head:
        """The first `most`, at least 1, of a listing that may be long."""
        ...

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> None: ...

    async def delete(self, key: str) -> None:
        """Deletes the key; no error if it is not there."""

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        """Applies all writes if all conditions hold, else nothing; tells which."""
        ...

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        """Holds a lease for the scope, renewed in the background, revoked at its end."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        """A Snapshot first, and again after a gap that cannot be replayed; Changes in between.

        It outlives any outage and never ends by itself: hold it in `contextlib.aclosing`. The changes of one
        commit come together, in one message.
        """
        ...
