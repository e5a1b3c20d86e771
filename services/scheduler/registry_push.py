"""Tells the registry of models what was committed, one commit at a time: the leader's work, beside all other."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import structlog

from services.common.background import background
from services.common.backoff import Backoff
from services.common.errors import HalogenError, PreconditionFailed
from services.common.ids import ModelName, Revision
from services.common.model_registry_config import ModelRegistryConfig
from services.common.pulse import Pulse
from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord, Failure, Stage, SyncStatus
from services.common.registry.records import ArtifactRecord
from services.common.registry.store import Entry, Put, Store, Unchanged
from services.common.registry.view import View
from services.scheduler.model_registry import ModelRegistry
from services.scheduler.push_document import push_document
from services.scheduler.push_outbox import PushOutbox

log = structlog.get_logger()


class Receiver(Protocol):
    """Who is told of commits."""

    async def put(self, model: ModelName, revision: Revision, document: bytes) -> None:
        """As `ModelRegistry.put` says."""
        ...


class RegistryPush:
    """Pushes the commits that are pending, while this scheduler leads. Nothing waits for it.

    The outbox is commits/ itself, so what a leader leaves undone the next one does. A push that is cut short, or whose
    end could not be written down, is made again: to the receiver that is the same document once more.

    Args:
        store: The etcd registry.
        commits: Its commits/, followed.
        receiver: The registry of models.
        outbox: Decides what is next.

    Attributes:
        failures: How many tries came to nothing, by whether each was the last one.
    """

    def __init__(
        self, store: Store, commits: View[CommitRecord], receiver: Receiver, outbox: PushOutbox
    ) -> None:
        self._store = store
        self._commits = commits
        self._receiver = receiver
        self._outbox = outbox
        self._pulse = Pulse()
        self._timer: asyncio.TimerHandle | None = None  # beats when the next one is due
        self._leads = False
        self.failures = collections.Counter[bool]()

    def lead(self) -> None:
        """Pushes from now on, beginning with what is pending already."""
        self._leads = True
        self._pulse.beat()

    def stand_by(self) -> None:
        """Begins no more pushes."""
        self._leads = False

    async def follow(self) -> None:
        """Follows for ever; one push at a time."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._relay())
                backoff = Backoff()
                async with contextlib.aclosing(self._pulse.beats()) as beats:
                    async for _ in beats:
                        await self._push_next(backoff)
        finally:
            self._set_timer(None)

    async def _relay(self) -> None:
        async with contextlib.aclosing(self._commits.changes()) as changes:
            async for _ in changes:
                self._pulse.beat()

    async def _push_next(self, backoff: Backoff) -> None:
        """One push, if one is due; what it writes, or its beat, leads to the next."""
        key = self._due()
        if key is None:
            return
        try:
            await self._push(key)
        except HalogenError as failure:  # of etcd: it says nothing of the receiver
            log.warning("push_delayed", key=key, error=str(failure))
            await backoff.pause()
            self._pulse.beat()
        else:
            backoff.reset()

    def _due(self) -> str | None:
        """The key of the commit that is to be pushed now; otherwise sets the timer."""
        self._set_timer(None)
        if not (self._leads and self._commits.is_synced):
            return None
        push = self._outbox.next_push(self._pending())
        if push is None:
            return None
        if push.due_s > asyncio.get_running_loop().time():
            self._set_timer(push.due_s)
            return None
        return push.key

    def _pending(self) -> set[str]:
        commits = self._commits.records.items()
        return {key for key, commit in commits if commit.registry_sync_status is SyncStatus.PENDING}

    def _set_timer(self, at_s: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if at_s is None else loop.call_at(at_s, self._pulse.beat)

    async def _push(self, key: str) -> None:
        """One try. Trusts what stands in the store over the view, which may lag behind."""
        entry = await self._store.get(key)
        commit = self._decoded(entry) if entry else None
        if entry is None or commit is None or commit.registry_sync_status is not SyncStatus.PENDING:
            return
        model, revision = keys.split_revision_key(key)
        artifact = await self._store.get(keys.artifact(model, commit.artifact_id))
        failure: HalogenError | None = None
        try:
            await self._receiver.put(model, revision, _document(model, revision, commit, artifact))
        except HalogenError as refusal:
            failure = refusal
        await self._note(entry, commit, failure)

    def _decoded(self, entry: Entry) -> CommitRecord | None:
        """None where somebody has written what is no such record; it is looked at again, behind others."""
        try:
            return CommitRecord.decode(entry.value)
        except ValueError:
            self._outbox.failed(entry.key, asyncio.get_running_loop().time())
            self._pulse.beat()
            return None

    async def _note(self, entry: Entry, commit: CommitRecord, failure: HalogenError | None) -> None:
        """What became of it: on record once it has ended, otherwise it is tried again."""
        if failure is not None and not self._is_over(entry.key, failure):
            self._pulse.beat()
            return
        self._outbox.forget(entry.key)
        told = Failure(stage=Stage.PUSH, reason=failure.reason, message=failure.message) if failure else None
        end = Put(entry.key, commit.pushed(told).encode())
        is_written = await self._store.commit([Unchanged(entry.key, entry.mod_revision)], [end])
        if is_written and failure is None:
            log.info("metadata_pushed", key=entry.key, artifact_id=commit.artifact_id)

    def _is_over(self, key: str, failure: HalogenError) -> bool:
        now_s = asyncio.get_running_loop().time()
        is_over = self._outbox.failed(key, now_s) or isinstance(failure, PreconditionFailed)
        self.failures[is_over] += 1
        log.warning(
            "push_metadata_failed",
            key=key,
            stage=Stage.PUSH,
            reason=failure.reason,
            error=failure.message,
            is_over=is_over,
        )
        return is_over


def _document(model: ModelName, revision: Revision, commit: CommitRecord, artifact: Entry | None) -> bytes:
    try:
        if artifact is not None:
            return push_document(model, revision, commit, ArtifactRecord.decode(artifact.value))
    except ValueError:  # no such record
        pass
    raise PreconditionFailed(
        f"artifact {commit.artifact_id[:12]} of {model} is not on record any more; register it again, then: halogen push",
        reason="ARTIFACT_UNKNOWN",
    )


@contextlib.asynccontextmanager
async def pushing(store: Store, config: ModelRegistryConfig) -> AsyncIterator[RegistryPush | None]:
    """Pushes to the configured registry, once it is told to lead, for the scope; None where there is none."""
    if not config.url:
        yield None
        return
    async with (
        View(store, keys.COMMITS, CommitRecord) as commits,
        ModelRegistry(config) as registry,
    ):
        push = RegistryPush(store, commits, registry, PushOutbox(config.push_tries))
        async with background(push.follow()):
            yield push
