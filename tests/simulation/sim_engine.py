"""An engine of the simulation: its generations, the loads under way, and the models in its memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from services.common.backoff import Backoff
from services.common.errors import CorruptData, HalogenError, Overloaded
from services.common.ids import ArtifactId, Cohort, InstanceId, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import SwapMode
from services.common.registry.records import EngineRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.common.registry.store import LeaseId
from services.engine.assignments import Assignments, ServedPairs
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose, EndStreams, Proceed, StartLoad
from services.engine.generations import Generations
from services.engine.named import Pair
from services.engine.swap_policy import SwapPolicy
from tests.simulation.mirror import Mirror
from tests.simulation.sim_load import SimLoad
from tests.simulation.sim_model import SimModel
from tests.simulation.sim_process import SimProcess
from tests.simulation.sim_registry import SimRegistry

TICKET_TTL_S: Final = 4.0
LOAD_TIMEOUT_S: Final = 20.0
_POLICY: Final = SwapPolicy(
    SwapMode.ATOMIC_SWAP, timeout_s=LOAD_TIMEOUT_S, fallback_on_failure=True, memory_guard_ratio=1
)


class SimEngine(SimProcess):
    """Does what `GenerationManager` does: hears, asks what is due, and acts.

    Args:
        registry: What it follows.
        number: Which engine it is, of those that there are.
        lease: Under which its record is.
        torn: Artifacts that cannot be loaded by anybody, for now.
        chance: Decides what races that the schedule does not.

    Attributes:
        loads: Those under way.
        ended: Generations whose models are to be let go.
        models: Those in memory.
        proceeding: Generations that may take memory since somebody last looked, with the models, or files for them, that
            their pairs had in memory then, each of theirs counted.
        ending: Generations whose streams are to end.
        crowded: The same, of those that did while others' models were yet to be let go.
        is_short: It has no memory for another model, for now.
        told_ready: What it has told that it has ACTIVE, for whom.
    """

    def __init__(
        self,
        registry: SimRegistry,
        number: int,
        lease: LeaseId,
        *,
        torn: Collection[ArtifactId],
        chance: random.Random,
    ) -> None:
        super().__init__(registry, lease)
        self.id = ProcessId(f"engine-{number}")
        self.targets = Mirror(registry, keys.TARGETS, Target)
        self.serving = Mirror(registry, keys.SERVING, Serving)
        self.mirrors = (self.targets, self.serving)
        self.assignments = Assignments(ServedPairs.parse(()), _POLICY)
        self.generations = Generations(
            self.assignments,
            ticket_ttl_s=TICKET_TTL_S,
            max_drain_s=chance.choice((0, 2 * TICKET_TTL_S)),
            retries=lambda: Backoff(1.0, 8.0, chance.uniform),
        )
        self.loads: list[SimLoad] = []
        self.ended: list[Generation] = []
        self.models: list[SimModel] = []
        self.proceeding: list[tuple[Generation, list[int]]] = []
        self.is_short = False
        self.ending: list[Generation] = []
        self.crowded: list[Generation] = []
        self.told_ready: set[tuple[ProcessId, Cohort, Revision, ArtifactId]] = set()
        self._leaving: dict[Generation, list[Pair]] = {}  # those of `ended`, with what they were for
        self._torn = torn
        self._chance = chance

    def wake(self, now_s: float) -> None:
        """Hears, and does what is due."""
        if not self.is_synced:
            return
        self._hear()
        pairs = {each.artifact_id: self._pairs(each.artifact_id) for each in self.generations.residents}
        due = self.generations.decide(now_s)
        ended = (action.generation for action in due if isinstance(action, Dispose))
        self._leaving |= {generation: pairs[generation.artifact_id] for generation in ended}
        for action in due:
            self._act(action)

    def next_due_s(self, now_s: float) -> float | None:
        return self.generations.next_due_s

    def bring_on(self, load: SimLoad) -> None:
        """One step of a load."""
        if load.generation.artifact_id in self._torn:
            load.fail(CorruptData("torn"))
        elif self.is_short and load.generation.model is None:
            load.fail(Overloaded("no memory", reason="MEMORY_GUARD"))
        if not load.is_over:
            load.go_on()
        self._forget(load)

    def fail(self, load: SimLoad, error: HalogenError) -> None:
        """A load meets a fault."""
        load.fail(error)
        self._forget(load)

    def dispose(self) -> None:
        """Lets go of the model that has waited longest for it."""
        generation = self.ended.pop(0)
        model = generation.model
        assert isinstance(model, SimModel)
        generation.let_go()
        model.is_here = False
        self.models.remove(model)
        del self._leaving[generation]
        self.generations.disposed(generation)

    def state_of(self, artifact_id: ArtifactId) -> State | None:
        """What the artifact's generation is here."""
        states = {each.artifact_id: each.state for each in self.generations.residents}
        return states.get(artifact_id)

    @property
    def record(self) -> EngineRecord:
        return EngineRecord(
            id=self.id,
            instance_id=InstanceId(f"{self.id}-{self.lease}"),
            address="x:1",
            host="h",
            start_time="2026-01-01T00:00:00+00:00",
            runtime_build="sim",
            generations=self.generations.records,
        )

    @property
    def key(self) -> str:
        return keys.engine(self.id)

    def _hear(self) -> None:
        self.generations.hear(self.targets.records, self.serving.records)

    def _act(self, action: Action) -> None:
        match action:
            case StartLoad(generation):
                self.loads.append(self._load_of(generation))
            case Proceed(generation):
                load = self._under_way(generation)
                self.crowded += [generation] if self.ended and not load.has_room else []
                load.may_proceed = load.has_room = True
                self._note_place(generation)
            case EndStreams(generation):
                self.ending.append(generation)
            case CancelLoad(generation):
                self._under_way(generation).is_called_off = True
            case Dispose(generation):
                self.ended.append(generation)

    def _load_of(self, generation: Generation) -> SimLoad:
        def make() -> SimModel:
            self.models.append(SimModel(generation.artifact_id))
            return self.models[-1]

        def activate() -> None:
            self._hear()
            self.generations.activate(generation)

        return SimLoad(self.generations, generation, self._note_place, make, activate, self._chance)

    def _note_place(self, generation: Generation) -> None:
        taken = Counter(self._taken())
        self.proceeding.append((generation, [taken[pair] for pair in self._pairs(generation.artifact_id)]))

    def _taken(self) -> Iterator[Pair]:
        """The pairs of all that is in memory, or may be by now: of loads, of what serves, of what is being let go."""
        loading = {each.generation.artifact_id for each in self.loads if each.has_room}
        states = {each.artifact_id: each.state for each in self.generations.residents}
        serving = {name for name, state in states.items() if state in {State.ACTIVE, State.DRAINING}}
        for artifact_id in loading | serving:
            yield from self._pairs(artifact_id)
        for pairs in self._leaving.values():
            yield from pairs

    def _pairs(self, artifact_id: ArtifactId) -> list[Pair]:
        return self.assignments.pairs(artifact_id)

    def _under_way(self, generation: Generation) -> SimLoad:
        return next(each for each in self.loads if each.generation is generation)

    def _forget(self, load: SimLoad) -> None:
        if load.is_over:
            self.loads.remove(load)
