"""A live mirror of one prefix of the registry, as decoded records."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Generic, Self, TypeVar

import structlog

from services.common.background import background
from services.common.pulse import Pulse
from services.common.registry.contact import RegistryContact
from services.common.registry.keys import check
from services.common.registry.record import Record, Revised
from services.common.registry.store import Changes, Snapshot, Store

R = TypeVar("R", bound=Record)

log = structlog.get_logger()


class View(Generic[R]):
    """Follows a prefix in the background for as long as its scope lasts, through every outage of the registry.

    A value that is no such record is logged, once, and passed over: the key's last good record, if any, stands. So is what
    stands under a key that this build cannot read: what the view holds can be split by `registry.keys`.

    Args:
        store: The registry.
        prefix: One of `registry.keys`' prefixes.
        record_type: What its values are.
        keeps: Whether what was said stands until something newer is: a key that vanishes keeps its last record, and one that
            goes back to an older revision the newest that it had.
        group_of: Tells what a record, under its key, is of: of what is of the same only the record under the last key
            is kept, and once that vanishes none until the next comes. None keeps all.
        contact: Where it keeps them, told of those that vanish or go back.

    Attributes:
        records: Key to record, as last heard; the same mapping for the life of the view.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        record_type: type[R],
        *,
        keeps: bool = False,
        group_of: Callable[[str, R], Hashable] | None = None,
        contact: RegistryContact | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._record_type = record_type
        self._keeps = keeps
        self._group_of = group_of
        self._passed_over: dict[str, bytes] = {}  # what has been logged, by key
        self._last: dict[Hashable, str] = {}  # the key that is kept of each group
        self._contact = contact or RegistryContact()
        self._records: dict[str, R] = {}
        self.records: Mapping[str, R] = MappingProxyType(self._records)
        self._pulse = Pulse()  # beats with the first snapshot and with every change
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._scope.enter_async_context(background(self._follow()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, value, trace)

    @property
    def is_synced(self) -> bool:
        """Whether the first snapshot is in; before it `records` is empty and says nothing."""
        return self._pulse.count > 0

    async def synced(self) -> None:
        """Returns when the first snapshot is in."""
        async with contextlib.aclosing(self.changes()) as changes:
            await anext(changes)

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields as soon as the view is synced and then after every change; several changes may come as one."""
        return self._pulse.beats()

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._store.watch(self._prefix)) as messages:
            async for message in messages:
                if isinstance(message, Snapshot):
                    self._replace(message)
                else:
                    self._apply(message)
                self._pulse.beat()

    def _replace(self, snapshot: Snapshot) -> None:
        present = {entry.key for entry in snapshot.entries}
        self._forget(self._records.keys() - present)
        for entry in snapshot.entries:
            self._decode(entry.key, entry.value)

    def _apply(self, changes: Changes) -> None:
        for key, value, _ in changes.changes:
            if value is None:
                self._forget([key])
            else:
                self._decode(key, value)

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._passed_over.pop(key, None)
            if not self._keeps:
                self._records.pop(key, None)
            elif key in self._records:
                self._contact.vanished(key)

    def _decode(self, key: str, value: bytes) -> None:
        try:
            check(key)
            record = self._record_type.decode(value)
        except ValueError as failure:
            self._contact.there(key)
            self._pass_over(key, value, failure)
            return
        self._passed_over.pop(key, None)
        if self._goes_back(key, record):
            self._contact.gone_back(key)
            return
        self._contact.there(key)
        if self._is_last(key, record):
            self._records[key] = record

    def _pass_over(self, key: str, value: bytes, failure: ValueError) -> None:
        if self._passed_over.get(key) != value:
            self._passed_over[key] = value
            log.warning("registry_record_invalid", key=key, error=str(failure))

    def _goes_back(self, key: str, record: R) -> bool:
        """Whether an older revision comes after a newer one, as from a registry restored from a backup."""
        standing = self._records.get(key)
        if not (self._keeps and isinstance(record, Revised) and isinstance(standing, Revised)):
            return False
        return record.revision < standing.revision

    def _is_last(self, key: str, record: R) -> bool:
        """Whether none of its group comes after it; those before it are let go."""
        if self._group_of is None:
            return True
        group = self._group_of(key, record)
        before = self._last.get(group, key)
        if before < key:
            self._records.pop(before, None)
        self._last[group] = max(before, key)
        return before <= key
