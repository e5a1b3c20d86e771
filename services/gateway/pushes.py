"""What operators want the registry of models to be told (again): noted with the commit, done by the leading scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

import structlog

from services.common.errors import Conflict, NotFound, Unavailable, Unsupported
from services.common.ids import ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord, SyncStatus
from services.common.registry.records import SchedulerRecord
from services.common.registry.revisions import by_revision
from services.common.registry.store import Entry, Put, Store, Unchanged
from services.common.registry.view import View
from services.gateway.operator_words import check_words, checked_model_name

log = structlog.get_logger()

TRIES: Final = 16


class PushOrder(NamedTuple):
    """What is to be pushed.

    Attributes:
        revision: One that was served; None takes the model's last.
    """

    model: ModelName
    revision: Revision | None
    who: str
    why: str


class Pushed(NamedTuple):
    """How a push stands."""

    revision: Revision
    record: CommitRecord


class Pushes:
    """Asks for pushes.

    Args:
        store: The registry of facts, etcd.
        leader: The scheduler that leads, None while none does.
    """

    def __init__(self, store: Store, leader: Callable[[], SchedulerRecord | None]) -> None:
        self._store = store
        self._leader = leader

    async def push(self, order: PushOrder) -> AsyncGenerator[Pushed, None]:
        """Notes that a commit is to be pushed, and who wants that; then how it stands, until it has ended.

        Raises:
            InvalidRequest: The model's name, who or why is not valid.
            Unsupported: The leading scheduler knows no registry of models.
            Unavailable: No scheduler leads.
            NotFound: Nothing was served under that revision, or it is older than those that are kept.
            Conflict: Others keep writing that commit's record.
        """
        checked_model_name(order.model)
        check_words(order.who, order.why)
        self._check_leader()
        key = await self._note(order)
        _, revision = keys.split_revision_key(key)
        async with (
            View(self._store, key, CommitRecord) as commits,
            contextlib.aclosing(commits.changes()) as changes,
        ):
            async for _ in changes:
                if key not in commits.records:
                    raise _unknown(order)
                yield Pushed(revision, commits.records[key])
                if commits.records[key].registry_sync_status is not SyncStatus.PENDING:
                    return

    def _check_leader(self) -> None:
        leader = self._leader()
        if leader is None:
            raise Unavailable(
                "no scheduler leads, so nobody would push it; see: halogen status",
                reason="NO_SCHEDULER",
                retry_after_s=1.0,
            )
        if not leader.pushes:
            raise Unsupported(
                "the schedulers know no registry of models to push to; start them with --registry.url",
                reason="REGISTRY_NOT_CONFIGURED",
            )

    async def _note(self, order: PushOrder) -> str:
        """The key of the commit, which is to be pushed now."""
        for _ in range(TRIES):
            entry = await self._found(order)
            asked = CommitRecord.decode(entry.value).asked(order.who, order.why)
            condition = Unchanged(entry.key, entry.mod_revision)
            if await self._store.commit([condition], [Put(entry.key, asked.encode())]):
                log.info("push_asked", key=entry.key, who=order.who, why=order.why)
                return entry.key
        raise Conflict(f"others keep writing that commit of {order.model}; try again", retry_after_s=1.0)

    async def _found(self, order: PushOrder) -> Entry:
        revision = order.revision
        if revision is None:
            entries = (await self._store.list(keys.commits(order.model))).entries
            revision = max(by_revision(entries, CommitRecord), default=Revision(0))
        found = await self._store.get(keys.commit(order.model, revision))
        if found is None:
            raise _unknown(order)
        return found


def _unknown(order: PushOrder) -> NotFound:
    what = "nothing of" if order.revision is None else f"no revision {order.revision} of"
    return NotFound(
        f"{what} {order.model} was served, or it is older than the last that are kept; see what was: "
        f"halogen history {order.model}",
        reason="COMMIT_UNKNOWN",
    )
