"""Moves cohorts on to their targets in the registry, as `serving` decides: the leader's work."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.pulse import Pulse
from services.common.registry.records import EngineRecord, GatewayRecord, Serving, Target
from services.common.registry.store import Put, Store, Unchanged
from services.common.registry.view import View
from services.common.telemetry.attributes import ARTIFACT_ID, REVISION
from services.common.telemetry.tracing import going_on_from, span
from services.scheduler.serving import Move, is_newer, moves_due

log = structlog.get_logger()


class ServingWriter:
    """Writes serving/ whenever the views say that a cohort may move and this scheduler leads.

    What a leader that has just been replaced still writes does no harm: it compares, and only ever moves on.

    Args:
        store: The registry.
        targets: What cohorts shall serve.
        serving: What they serve.
        engines: What engines hold.
        gateways: What gateways have a tokenizer for.
    """

    def __init__(
        self,
        store: Store,
        *,
        targets: View[Target],
        serving: View[Serving],
        engines: View[EngineRecord],
        gateways: View[GatewayRecord],
    ) -> None:
        self._store = store
        self._targets = targets
        self._serving = serving
        self._engines = engines
        self._gateways = gateways
        self._views: Final[tuple[View[Any], ...]] = (targets, serving, engines, gateways)
        self._pulse = Pulse()
        self._leads = False

    def lead(self) -> None:
        """Writes from now on, beginning with what is due already."""
        self._leads = True
        self._pulse.beat()

    def stand_by(self) -> None:
        """Writes no more."""
        self._leads = False

    async def follow(self) -> None:
        """Follows for ever; on standby, and before all views are synced, nothing is moved."""
        async with asyncio.TaskGroup() as group:
            for view in self._views:
                group.create_task(self._relay(view))
            backoff = Backoff()
            async with contextlib.aclosing(self._pulse.beats()) as beats:
                async for _ in beats:
                    await self._move_all(backoff)

    async def _relay(self, view: View[Any]) -> None:
        async with contextlib.aclosing(view.changes()) as changes:
            async for _ in changes:
                self._pulse.beat()

    async def _move_all(self, backoff: Backoff) -> None:
        if not (self._leads and all(view.is_synced for view in self._views)):
            return
        due = moves_due(
            targets=self._targets.records,
            serving=self._serving.records,
            engines=tuple(self._engines.records.values()),
            gateways=tuple(self._gateways.records.values()),
        )
        try:
            for move in due:
                await self._write(move)
        except HalogenError as failure:
            log.warning("serving_delayed", error=str(failure))
            await backoff.pause()
            self._pulse.beat()
        else:
            backoff.reset()

    async def _write(self, move: Move) -> None:
        """Compares and sets, against what stands there now rather than in a view."""
        entry = await self._store.get(move.key)
        standing = _decode(entry.value) if entry else None
        if not is_newer(move.serving.revision, standing):
            return
        condition, new = Unchanged(move.key, entry.mod_revision if entry else 0), move.serving
        told: dict[str, str | int] = {REVISION: new.revision, ARTIFACT_ID: new.artifact_id or ""}
        with span("swap", told, parent=going_on_from(move.trace_parent)):
            if await self._store.commit([condition], [Put(move.key, new.encode())]):
                log.info(
                    "atomic_swap_commit", key=move.key, revision=new.revision, artifact_id=new.artifact_id
                )


def _decode(value: bytes) -> Serving | None:
    """None where the value is no such record: a sound one may replace it."""
    try:
        return Serving.decode(value)
    except ValueError:
        return None
