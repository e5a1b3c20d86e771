"""Holds every step of an engine against the invariants of what it has in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from services.common.ids import ArtifactId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import SwapMode
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Serving, Target
from services.engine.generation import Generation
from services.engine.succession import MOST_RESIDENT
from tests.simulation.sim_engine import SimEngine
from tests.simulation.swap_invariants import hold


class EngineWatch:
    """Remembers what the engine had heard and had ACTIVE when it was last awake.

    Args:
        engine: Which.
        served_at: What was served when the publish of a revision was accepted, as it is on record.
    """

    def __init__(self, engine: SimEngine, served_at: Mapping[Revision, Serving]) -> None:
        self._engine = engine
        self._served_at = served_at
        self._heard: dict[str, Serving] = {}
        self._active: set[ArtifactId] = set()

    def after_wake(self) -> None:
        """It has done what was due."""
        self._note_heard()
        self._check_kept()
        self._check_loads()
        self._check_room()

    def _note_heard(self) -> None:
        for key, record in self._engine.serving.records.items():
            if key not in self._heard or record.revision > self._heard[key].revision:
                self._heard[key] = record

    def _check_kept(self) -> None:
        states = {each.artifact_id: each.state for each in self._engine.generations.residents}
        served = self._served()
        standing = {name: each for name, each in self._heard.items() if each == served[name]}
        for artifact_id in self._kept(standing) & self._active:
            hold("I6", states.get(artifact_id) is State.ACTIVE, (self._engine.id, artifact_id, states))
        for artifact_id in self._kept(served) & self._active:
            hold("I13", states.get(artifact_id) is State.ACTIVE, (self._engine.id, artifact_id, states))
        self._active = {artifact_id for artifact_id, state in states.items() if state is State.ACTIVE}

    def _kept(self, served: Mapping[str, Serving]) -> set[ArtifactId]:
        """Of what is served, all but what drains for a newer publish that says so."""
        targets = self._engine.targets.records
        return {
            each.artifact_id
            for name, each in served.items()
            if each.artifact_id
            and not _drains(targets.get(keys.target(*keys.split_cohort_key(name))), each.revision)
        }

    def _served(self) -> dict[str, Serving]:
        """What it can know to be served: by what it has heard of commits, and by the publishes that it has heard of."""
        served = dict(self._heard)
        for key, target in self._engine.targets.records.items():
            name = keys.serving(*keys.split_cohort_key(key))
            then = self._served_at.get(target.revision)
            if then and (name not in served or then.revision > served[name].revision):
                served[name] = then
        return served

    def _check_loads(self) -> None:
        loading = Counter(each.generation.artifact_id for each in self._engine.loads)
        hold("I9", all(number == 1 for number in loading.values()), (self._engine.id, loading))
        hold("I9", len(set(self._engine.ended)) == len(self._engine.ended), self._engine.ended)

    def _check_room(self) -> None:
        for generation, taken in self._engine.proceeding:
            hold("I10", all(count <= MOST_RESIDENT for count in taken), (self._engine.id, generation, taken))
            making_way = self._engine.assignments.making_way
            if generation.artifact_id in making_way.candidates and generation.state is State.ALLOCATING:
                here = making_way.for_(generation.artifact_id) & set(self._resident())
                hold("I10", not here and generation not in self._engine.crowded, (self._engine.id, here))
        self._engine.proceeding.clear()
        self._engine.crowded.clear()

    def _resident(self) -> Iterator[ArtifactId]:
        loading: list[Generation] = [each.generation for each in self._engine.loads if each.may_proceed]
        yield from (each.artifact_id for each in loading)
        for each in self._engine.generations.residents:
            if each.state in {State.ACTIVE, State.DRAINING} and each.artifact_id not in {
                loaded.artifact_id for loaded in loading
            }:
                yield each.artifact_id


def _drains(target: Target | None, served: Revision) -> bool:
    return (
        target is not None and target.revision > served and target.strategy.mode is SwapMode.DRAIN_THEN_LOAD
    )
