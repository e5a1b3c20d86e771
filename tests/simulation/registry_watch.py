"""Holds every transaction of the registry against the invariants of what is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from services.common.ids import ArtifactId, Cohort, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.publish_progress import MIN_READY
from services.common.registry.publish_records import CommitRecord, IntentRecord, PublishState
from services.common.registry.record import Record
from services.common.registry.records import (
    EngineRecord,
    GenerationRecord,
    GenerationState,
    LastRevision,
    Serving,
    Target,
)
from services.common.registry.store import Change
from tests.simulation.sim_engine import SimEngine
from tests.simulation.swap_invariants import hold

_KINDS: Final[Mapping[str, type[Record]]] = {
    keys.REVISIONS: LastRevision,
    keys.TARGETS: Target,
    keys.SERVING: Serving,
    keys.INTENTS: IntentRecord,
    keys.COMMITS: CommitRecord,
    keys.ENGINES: EngineRecord,
}

Ready = tuple[ProcessId, Cohort, Revision, ArtifactId]


class RegistryWatch:
    """Remembers what was said before.

    Args:
        engines: Those that live.

    Attributes:
        served_at: What was served when the publish of a revision was accepted.
    """

    def __init__(self, engines: Callable[[], Iterable[SimEngine]]) -> None:
        self.served_at: dict[Revision, Serving] = {}
        self._engines = engines
        self._said: dict[str, Record] = {}
        self._names: dict[Revision, ArtifactId | None] = {}
        self._told_ready: set[Ready] = set()
        self._checks: dict[type[Record], Callable[[str, Record], None]] = {
            LastRevision: self._check_revision,
            Target: self._check_target,
            Serving: self._check_serving,
            IntentRecord: self._check_intent,
            CommitRecord: self._check_commit,
            EngineRecord: self._note_ready,
        }
        self._now: dict[str, Record] = {}

    def on_commit(self, changes: tuple[Change, ...]) -> None:
        """Judges a transaction."""
        self._now = {
            key: kind.decode(value)
            for key, value, _ in changes
            if value is not None and (kind := _KINDS.get(key.partition("/")[0] + "/"))
        }
        for key, record in self._now.items():
            self._checks[type(record)](key, record)
        self._said |= self._now
        if any(key.startswith((keys.INTENTS, keys.TARGETS)) for key in self._now):
            self._check_pending()

    def _check_revision(self, key: str, record: Record) -> None:
        assert isinstance(record, LastRevision)
        before = self._said.get(key)
        last = before.revision if isinstance(before, LastRevision) else 0
        hold("I1", record.revision == last + 1, (last, record))

    def _check_target(self, key: str, record: Record) -> None:
        assert isinstance(record, Target)
        before = self._said.get(key)
        named = self._names.setdefault(record.revision, record.artifact_id)
        hold("I1", named == record.artifact_id, record)
        served = self._said.get(keys.serving(*keys.split_cohort_key(key)))
        if isinstance(served, Serving):
            self.served_at.setdefault(record.revision, served)
        if isinstance(before, Target):
            hold("I1", record.revision >= before.revision, (before, record))
            is_taken_back = record.revision == before.revision and before.failure and record != before
            hold("I3", not is_taken_back, (before, record))

    def _check_serving(self, key: str, record: Record) -> None:
        assert isinstance(record, Serving)
        before = self._said.get(key)
        hold("I2", not isinstance(before, Serving) or record.revision > before.revision, (before, record))
        model, cohort = keys.split_cohort_key(key)
        intent = self._now.get(keys.intent(model, record.revision))
        hold("I4", isinstance(intent, IntentRecord) and intent.state is PublishState.APPLIED, (key, record))
        assert isinstance(intent, IntentRecord)
        hold("I4", (intent.cohort, intent.artifact_id) == (cohort, record.artifact_id), (record, intent))
        commit = self._now.get(keys.commit(model, record.revision))
        hold("I4", (commit is None) == (record.artifact_id is None), (record, commit))
        target = self._standing(keys.target(model, cohort))
        assert isinstance(target, Target)
        hold("I4", target.revision == record.revision and target.failure is None, (target, record))
        if commit is None:
            return
        assert isinstance(commit, CommitRecord)
        hold("I4", (commit.cohort, commit.artifact_id) == (cohort, record.artifact_id), (record, commit))
        self._check_ready(cohort, record, target.strategy.min_ready or MIN_READY)

    def _check_ready(self, cohort: Cohort, record: Serving, min_ready: int) -> None:
        assert record.artifact_id is not None
        hold("I5", len(set(record.ready)) >= min_ready, record)
        for name in record.ready:
            ready = (name, cohort, record.revision, record.artifact_id)
            hold("I5", ready in self._told_ready, ready)
        for engine in self._engines():
            mine = (engine.id, cohort, record.revision, record.artifact_id)
            if engine.id in record.ready and mine in engine.told_ready:  # else it has died since
                state = engine.state_of(record.artifact_id)
                hold("I5", state is GenerationState.ACTIVE, (mine, state))

    def _check_intent(self, key: str, record: Record) -> None:
        assert isinstance(record, IntentRecord)
        before = self._said.get(key)
        if isinstance(before, IntentRecord):
            hold("I3", before.state is PublishState.PENDING or record == before, (before, record))
        model, revision = keys.split_revision_key(key)
        served = self._now.get(keys.serving(model, record.cohort))
        if record.state is PublishState.APPLIED:
            is_served = isinstance(served, Serving) and served.revision == revision
            hold("I4", is_served or record == before, (record, served))
        if record.state is PublishState.FAILED and record != before:
            target = self._now.get(keys.target(model, record.cohort))
            hold("I4", isinstance(target, Target) and target.failure == record.failure, (record, target))

    def _check_commit(self, key: str, record: Record) -> None:
        assert isinstance(record, CommitRecord)
        model, revision = keys.split_revision_key(key)
        served = self._now.get(keys.serving(model, record.cohort))
        hold("I4", isinstance(served, Serving) and served.revision == revision, (key, record, served))

    def _check_pending(self) -> None:
        pending = [
            (*keys.split_revision_key(key), each.cohort)
            for key, each in self._said.items()
            if isinstance(each, IntentRecord) and each.state is PublishState.PENDING
        ]
        for model, revision, cohort in pending:
            target = self._said.get(keys.target(model, cohort))
            is_latest = isinstance(target, Target) and target.revision == revision
            hold("I3", is_latest, (revision, cohort, target))

    def _note_ready(self, key: str, record: Record) -> None:
        assert isinstance(record, EngineRecord)
        ready = {
            (record.id, *_names(each)) for each in record.generations if each.state is GenerationState.ACTIVE
        }
        self._told_ready |= ready
        for engine in self._engines():
            if engine.id == record.id:
                engine.told_ready |= ready

    def _standing(self, key: str) -> Record | None:
        return self._now.get(key) or self._said.get(key)


def _names(held: GenerationRecord) -> tuple[Cohort, Revision, ArtifactId]:
    return held.cohort, held.revision, held.artifact_id
