"""Ends publishes in the registry, as `rollout` decides: the leader's work."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.pulse import Pulse
from services.common.registry import keys
from services.common.registry.publish_records import SyncStatus
from services.common.registry.records import EngineRecord, GatewayRecord, Serving, Target
from services.common.registry.store import Ambiguous, Store
from services.common.registry.view import View
from services.common.telemetry.attributes import ARTIFACT_ID, REVISION
from services.common.telemetry.tracing import going_on_from, span
from services.scheduler.patience import Patience
from services.scheduler.rollout import Commit, Fail, Step, steps_due
from services.scheduler.rollout_transaction import Concerned, Standing, Transaction, transaction

log = structlog.get_logger(component="state_machine")


class Views(NamedTuple):
    """The mirrors that it decides by: what cohorts shall serve, what they do, and who is ready."""

    targets: View[Target]
    serving: View[Serving]
    engines: View[EngineRecord]
    gateways: View[GatewayRecord]


class RolloutWriter:
    """Commits publishes, or ends them as FAILED, whenever the views say so and this scheduler leads.

    A commit is one transaction: what gateways use, the commit's record and the intent's end. What a leader that has
    just been replaced still writes does no harm: it compares target, serving and intent, and only ever moves on.

    Args:
        store: The registry.
        views: What it decides by.
        timeout_s: Seconds that a publish which some engines are ready for waits for others, unless it says.
        sync_status: How commits stand in the registry of models from their beginning.
    """

    def __init__(
        self, store: Store, views: Views, timeout_s: float, sync_status: SyncStatus | None = None
    ) -> None:
        self._store = store
        self._views: Final = views
        self._timeout_s = timeout_s
        self._sync_status = sync_status
        self._patience = Patience(timeout_s)
        self._pulse = Pulse()
        self._timer: asyncio.TimerHandle | None = None  # beats when the next publish has waited too long
        self._leads = False
        self._doubted: list[tuple[Step, Transaction]] = []  # written, and the answer was lost

    def lead(self) -> None:
        """Writes from now on, beginning with what is due already."""
        self._leads = True
        self._patience = Patience(self._timeout_s)
        self._pulse.beat()

    def stand_by(self) -> None:
        """Writes no more."""
        self._leads = False

    async def follow(self) -> None:
        """Follows for ever; on standby, and before all views are synced, nothing is written."""
        try:
            async with asyncio.TaskGroup() as group:
                for view in self._views:
                    group.create_task(self._relay(view))
                backoff = Backoff()
                async with contextlib.aclosing(self._pulse.beats()) as beats:
                    async for _ in beats:
                        await self._write_all(backoff)
        finally:
            self._set_timer(None)

    async def _relay(self, view: View[Any]) -> None:
        async with contextlib.aclosing(view.changes()) as changes:
            async for _ in changes:
                self._pulse.beat()

    async def _write_all(self, backoff: Backoff) -> None:
        if not (self._leads and all(view.is_synced for view in self._views)):
            return
        try:
            await self._look_back()
            for step in self._due():
                await self._write(step)
        except HalogenError as failure:
            log.warning("serving_delayed", error=str(failure))
            await backoff.pause()
            self._pulse.beat()
        else:
            backoff.reset()

    def _due(self) -> list[Step]:
        now_s = asyncio.get_running_loop().time()
        due = steps_due(
            targets=self._views.targets.records,
            serving=self._views.serving.records,
            engines=tuple(self._views.engines.records.values()),
            gateways=tuple(self._views.gateways.records.values()),
            patience=self._patience,
            now_s=now_s,
        )
        self._set_timer(self._patience.next_end_s(now_s))
        return due

    def _set_timer(self, at_s: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if at_s is None else loop.call_at(at_s, self._pulse.beat)

    async def _write(self, step: Step) -> None:
        """Compares and sets, against what stands there now rather than in a view."""
        standing = Standing(*[await self._store.get(key) for key in Concerned.by(step)])
        due = transaction(step, standing, dt.datetime.now(dt.UTC).isoformat(), self._sync_status)
        if due is None:
            return
        with _swapping(step) if isinstance(step, Commit) else contextlib.nullcontext():
            try:
                is_done = await self._store.commit(due.conditions, due.writes)
            except Ambiguous:
                self._doubted.append((step, due))
                raise
            if is_done:
                _tell(step, due)

    async def _look_back(self) -> None:
        """Tells of what turns out to be done although the registry's answer was lost: what nobody else writes alike shows it."""
        while self._doubted:
            step, due = self._doubted[-1]
            standing = await self._store.get(due.proof.key)
            self._doubted.pop()
            if standing is not None and standing.value == due.proof.value:
                _tell(step, due)


def _swapping(step: Commit) -> AbstractContextManager[object]:
    """The span of a commit, in the publish's trace."""
    named = {REVISION: step.target.revision, ARTIFACT_ID: step.target.artifact_id or ""}
    return span("swap", named, parent=going_on_from(step.target.trace_parent))


def _tell(step: Step, done: Transaction) -> None:
    revision, new, old = step.target.revision, step.target.artifact_id or "", done.old_artifact_id or ""
    if isinstance(step, Fail):
        log.warning("publish_failed", key=step.key, revision=revision, **step.failure.model_dump())
        return
    log.info("publish_applied", key=step.key, revision=revision, waiting_for=step.waiting_for)
    if new != old:
        model, cohort = keys.split_cohort_key(step.key)
        told = {"key": step.key, "model": model, "cohort": cohort, "seq": revision}
        log.info("atomic_swap_commit", **told, old=old, new=new)
