"""What is served where, as the registry tells it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self

from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.pulse import merged
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.publish_progress import MIN_READY, progress, state_of
from services.common.registry.publish_records import CommitRecord, PublishState
from services.common.registry.qualification_records import QualificationRecord
from services.common.registry.records import (
    ArtifactRecord,
    EngineRecord,
    GatewayRecord,
    LoaderRecord,
    ProcessRecord,
    SchedulerRecord,
    Serving,
    Target,
)
from services.common.registry.store import Store
from services.common.registry.view import View
from services.gateway.cohort_progress import CohortProgress
from services.gateway.qualifications import Qualified


class Status(NamedTuple):
    """One consistent reading of the mirrors."""

    targets: Mapping[str, Target]
    serving: Mapping[str, Serving]
    processes: tuple[tuple[str, ProcessRecord], ...]  # (role, record), by role and id
    artifacts: Mapping[tuple[ModelName, ArtifactId], ArtifactRecord]
    qualifications: tuple[Qualified, ...]  # by artifact and build
    commits: Mapping[str, CommitRecord]  # the last of every model and cohort
    is_stale: bool  # whether the registry may say something else by now

    def commit(self, key: str) -> CommitRecord | None:
        """Of what the cohort of a targets/ key serves."""
        model, cohort = keys.split_cohort_key(key)
        served = self.serving.get(keys.serving(model, cohort))
        return self.commits.get(keys.commit(model, served.revision)) if served else None

    def state(self, key: str) -> PublishState:
        """How the publish stands that a targets/ key names."""
        return state_of(self.targets[key], self.serving.get(keys.serving(*keys.split_cohort_key(key))))

    def progress(self, key: str) -> CohortProgress:
        """How far everybody is with a targets/ key's cohort."""
        model, cohort = keys.split_cohort_key(key)
        named: list[tuple[str, Target | Serving]] = [*self.targets.items(), *self.serving.items()]
        engines = (record for _, record in self.processes if isinstance(record, EngineRecord))
        return CohortProgress.of(
            self.targets[key],
            self.state(key),
            serving=self.serving.get(keys.serving(model, cohort)),
            last=max(each.revision for name, each in named if keys.split_cohort_key(name)[0] == model),
            engines=[
                each
                for engine in engines
                for each in engine.progress
                if (each.model, each.cohort) == (model, cohort)
            ],
        )

    def waiting_for(self, key: str) -> tuple[str, ...]:
        """Who is not ready for a targets/ key's artifact, and who is missing; nobody, where it failed or names none."""
        target, (model, cohort) = self.targets[key], keys.split_cohort_key(key)
        if target.failure or target.artifact_id is None:
            return ()
        seen = progress(
            model,
            cohort,
            target,
            serving=self.serving.get(keys.serving(model, cohort)),
            engines=[record for _, record in self.processes if isinstance(record, EngineRecord)],
            gateways=[record for _, record in self.processes if isinstance(record, GatewayRecord)],
        )
        if self.state(key) is PublishState.APPLIED:  # who left since is not missed
            return (*seen.laggards, *seen.textless)
        return (*seen.waiting_for, *seen.shortage(target.strategy.min_ready or MIN_READY))


class StatusViews:
    """Mirrors of everything that a status shows.

    Args:
        store: The registry.
        contact: With it.
        targets: The gateway's own mirror of targets/, shared.
        serving: The same for serving/.
        loaders: The same for loaders/.
        engines: The same for engines/.
    """

    def __init__(
        self,
        store: Store,
        contact: RegistryContact,
        *,
        targets: View[Target],
        serving: View[Serving],
        loaders: View[LoaderRecord],
        engines: View[EngineRecord],
    ) -> None:
        self._contact = contact
        self._targets, self._serving, self._loaders, self._engines = targets, serving, loaders, engines
        self._artifacts = View(store, keys.ARTIFACTS, ArtifactRecord)
        self._gateways = View(store, keys.GATEWAYS, GatewayRecord)
        self._schedulers = View(store, keys.SCHEDULERS, SchedulerRecord)
        self._qualifications = View(store, keys.QUALIFICATIONS, QualificationRecord)
        self._commits = View(store, keys.COMMITS, CommitRecord, group_of=_committed)
        self._own: tuple[View[Any], ...] = (
            self._commits,
            self._artifacts,
            self._gateways,
            self._schedulers,
            self._qualifications,
        )
        self._scope = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as scope:
            for view in self._own:
                await scope.enter_async_context(view)
            self._scope = scope.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.aclose()

    def last_revision(self, model: ModelName) -> Revision:
        """The highest revision of the model that anybody knows of; 0 when nobody knows any."""
        named: list[tuple[str, Target | Serving]] = [
            *self._targets.records.items(),
            *self._serving.records.items(),
        ]
        told = [record.revision for key, record in named if keys.split_cohort_key(key)[0] == model]
        held = [
            generation.revision
            for engine in self._engines.records.values()
            for generation in engine.generations
            if generation.model == model
        ]
        return max([*told, *held], default=Revision(0))

    @property
    def leader(self) -> SchedulerRecord | None:
        """The scheduler that leads, as far as it is known."""
        leading = [each for each in self._schedulers.records.values() if each.term]
        return max(leading, key=lambda each: each.term, default=None)

    def read(self) -> Status:
        by_role: tuple[tuple[str, View[Any]], ...] = (
            ("gateway", self._gateways),
            ("scheduler", self._schedulers),
            ("loader", self._loaders),
            ("engine", self._engines),
        )
        return Status(
            targets=dict(self._targets.records),
            serving=dict(self._serving.records),
            processes=tuple(
                (role, record) for role, view in by_role for _, record in sorted(view.records.items())
            ),
            artifacts={_artifact_key(key): record for key, record in self._artifacts.records.items()},
            qualifications=tuple(
                Qualified(*keys.split_qualification_key(key), record)
                for key, record in sorted(self._qualifications.records.items())
            ),
            commits=self._commits.records,
            is_stale=bool(self._contact.stale),
        )

    async def changes(self) -> AsyncGenerator[Status, None]:
        """A reading at once, and another after every change, coalesced."""
        views: tuple[View[Any], ...] = (
            self._targets,
            self._serving,
            self._loaders,
            self._engines,
            *self._own,
        )
        beats = (self._contact.changes(), *(view.changes() for view in views))
        async with contextlib.aclosing(merged(*beats)) as changes:
            async for _ in changes:
                yield self.read()


def _committed(key: str, record: CommitRecord) -> tuple[ModelName, Cohort]:
    model, _ = keys.split_revision_key(key)
    return model, record.cohort


def _artifact_key(key: str) -> tuple[ModelName, ArtifactId]:
    _, model, artifact_id = key.split("/")
    return ModelName(model), ArtifactId(artifact_id)
