"""Who leads: one candidate at a time holds a key, in a term higher than any before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import structlog

from services.common.background import background
from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.pulse import Pulse
from services.common.registry import keys
from services.common.registry.leader_records import LastTerm, LeaderRecord
from services.common.registry.record import Record
from services.common.registry.store import Ambiguous, Entry, Lease, Put, Store, Unchanged
from services.common.registry.view import View

R = TypeVar("R", bound=Record)

log = structlog.get_logger()


class Election:
    """Stands for leader/scheduler for as long as its scope lasts; leaving the scope resigns at once.

    The post is taken under a lease, and with it a new term, in one commit. A leader whose lease is lost leads on
    in its term, so that an outage of the registry stops nobody: until it sees that another has begun a higher
    term, or has taken the post anew, in a higher term of its own.

    A candidate takes over at once from a predecessor of its own name whose record it finds at its start: two
    processes of one name are one process and its restart.

    Args:
        store: The registry.
        candidate: Who stands; its term is of no account.
        ttl_s: Seconds after which a silent leader may be replaced.
        changed: Told the term in which the candidate leads from now on, None when it leads no more. It is told
            None before its key is given up.
    """

    def __init__(
        self, store: Store, candidate: LeaderRecord, ttl_s: int, changed: Callable[[int | None], None]
    ) -> None:
        self._store = store
        self._candidate = candidate
        self._ttl_s = ttl_s
        self._changed = changed
        self._view = View(store, keys.LEADER, LeaderRecord)
        self._own = {candidate.instance_id}  # whose record may be replaced: our own, and a predecessor's
        self._term: int | None = None
        # Of all terms that were ever seen: engines remember theirs, should the registry lose its own.
        self._highest = 0
        self._news = Pulse()  # the post has changed hands, or a lease is lost
        self._backoff = Backoff()
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as scope:
            await scope.enter_async_context(self._view)
            await scope.enter_async_context(background(self._observe()))
            await scope.enter_async_context(background(self._campaign()))
            self._scope = scope.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, value, trace)

    @property
    def term(self) -> int | None:
        """The term in which the candidate leads; None while it stands by."""
        return self._term

    @property
    def _standing(self) -> LeaderRecord | None:
        return self._view.records.get(keys.SCHEDULER_LEADER)

    async def _observe(self) -> None:
        """Steps down as soon as another's higher term is seen, whatever the campaign is waiting for."""
        async with contextlib.aclosing(self._view.changes()) as changes:
            await anext(changes)
            self._find_predecessor()
            self._remember_term(self._standing)
            self._news.beat()
            async for _ in changes:
                self._remember_term(self._standing)
                if self._is_replaced():
                    self._cease("another leads")
                self._news.beat()

    def _remember_term(self, seen: LeaderRecord | LastTerm | None) -> None:
        self._highest = max(self._highest, seen.term if seen else 0)

    def _find_predecessor(self) -> None:
        if (standing := self._standing) and standing.id == self._candidate.id:
            self._own.add(standing.instance_id)

    def _is_replaced(self) -> bool:
        standing = self._standing
        return (
            self._term is not None
            and standing is not None
            and standing.instance_id != self._candidate.instance_id
            and standing.term > self._term
        )

    def _is_free(self, standing: LeaderRecord | None) -> bool:
        """Also of one in a term that is over: the registry has lost its own, and engines take no ticket of it."""
        return standing is None or standing.instance_id in self._own or standing.term < self._highest

    async def _campaign(self) -> None:
        try:
            while True:
                try:
                    await self._stand_once()
                except HalogenError as failure:
                    log.warning("election_delayed", error=str(failure), term=self._term)
                await self._backoff.pause()
        finally:
            self._cease("the candidate resigns")

    async def _stand_once(self) -> None:
        """Waits until the post is free, takes it, and keeps it as long as the lease lasts."""
        await self._vacancy()
        async with self._store.lease(self._ttl_s) as lease:
            try:
                if term := await self._take(lease):
                    self._lead(term)
                    await self._keep(lease, term)
            except asyncio.CancelledError:
                self._cease("the candidate resigns")  # before the lease, and with it the key, is given back
                raise

    async def _vacancy(self) -> None:
        async with contextlib.aclosing(self._news.beats()) as beats:
            async for _ in beats:
                if self._is_free(self._standing):
                    return

    async def _take(self, lease: Lease) -> int | None:
        """Compares and sets, against what stands in the registry rather than in a view; the new term if it won."""
        post = await self._store.get(keys.SCHEDULER_LEADER)
        last = await self._store.get(keys.SCHEDULER_TERM)
        standing, ended = _decode(post, LeaderRecord), _decode(last, LastTerm)
        if not self._is_free(standing):
            return None
        self._remember_term(standing)
        self._remember_term(ended)
        term = 1 + max(self._term or 0, self._highest)
        record = self._candidate.model_copy(update={"term": term})
        conditions = [
            Unchanged(keys.SCHEDULER_LEADER, post.mod_revision if post else 0),
            Unchanged(keys.SCHEDULER_TERM, last.mod_revision if last else 0),
        ]
        writes = [
            Put(keys.SCHEDULER_LEADER, record.encode(), lease.id),
            Put(keys.SCHEDULER_TERM, LastTerm(term=term).encode()),
        ]
        try:
            taken = await self._store.commit(conditions, writes)
        except Ambiguous:
            found = await self._store.get(keys.SCHEDULER_LEADER)
            taken = found is not None and found.value == record.encode()
        return term if taken else None

    async def _keep(self, lease: Lease, term: int) -> None:
        """Returns when the lease is lost, when another leads, or when the record has been taken away."""
        is_seen = False
        async with background(self._tell_when_lost(lease)), contextlib.aclosing(self._news.beats()) as beats:
            async for _ in beats:
                standing = self._standing
                if lease.lost.is_set() or self._term is None or (is_seen and standing is None):
                    return
                is_seen = is_seen or (standing is not None and standing.term == term)

    async def _tell_when_lost(self, lease: Lease) -> None:
        await lease.lost.wait()
        log.warning("leadership_unleased", term=self._term)
        self._news.beat()

    def _lead(self, term: int) -> None:
        log.info("leadership_taken", old=self._term, new=term)
        self._backoff.reset()
        self._term = term
        self._changed(term)

    def _cease(self, why: str) -> None:
        if self._term is None:
            return
        log.info("leadership_ended", term=self._term, why=why)
        self._term = None
        self._changed(None)


def _decode(entry: Entry | None, record_type: type[R]) -> R | None:
    """None also where the value is no such record: a sound one may replace it."""
    try:
        return record_type.decode(entry.value) if entry else None
    except ValueError:
        return None
