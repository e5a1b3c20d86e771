"""Generations without a rim: a test is their registry, their loads and their clock."""

from __future__ import annotations

from services.common.backoff import Backoff
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure, Stage, Strategy, SwapMode
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Served, Serving, Target
from services.engine.assignments import Assignments, ServedPairs
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose, EndStreams, Proceed, StartLoad
from services.engine.generations import Generations
from services.engine.succession import MOST_RESIDENT
from services.engine.swap_policy import SwapPolicy
from tests.unit.engine.fakes import CountingModel

MODEL, STABLE, CANARY = ModelName("m"), Cohort.STABLE, Cohort.CANARY
TICKET_TTL_S = 10.0
TIMEOUT_S = 600.0
POLICY = SwapPolicy(SwapMode.ATOMIC_SWAP, timeout_s=TIMEOUT_S, fallback_on_failure=True, memory_guard_ratio=1)
AS_THE_ENGINE_HAS_IT = Strategy()


class GenerationsAlone:
    """What is said to them, and what they have asked for.

    Attributes:
        loads: Loads under way, by artifact; ended by `stop`.
        proceeding: Those of them that may take memory.
        ending: Those whose streams are to end, in order.
        disposed: What was to be let go, in order; that takes until after the next `decide`.
    """

    def __init__(self, policy: SwapPolicy = POLICY, max_drain_s: float = 0) -> None:
        self.generations = Generations(
            Assignments(ServedPairs.parse(()), policy),
            ticket_ttl_s=TICKET_TTL_S,
            max_drain_s=max_drain_s,
            retries=lambda: Backoff(1.0, 60.0, lambda _, most: most),
        )
        self.now_s = 0.0
        self.revision = Revision(0)
        self.loads: dict[ArtifactId, Generation] = {}
        self.proceeding: set[Generation] = set()
        self.cancelled: list[Generation] = []
        self.ending: list[Generation] = []
        self.disposed: list[Generation] = []
        self._letting_go: list[Generation] = []
        self._targets: dict[str, Target] = {}
        self._serving: dict[str, Serving] = {}

    def target(
        self,
        artifact: ArtifactId | None,
        cohort: Cohort = STABLE,
        strategy: Strategy = AS_THE_ENGINE_HAS_IT,
        served: Served | None = None,
    ) -> Revision:
        """A publish, and what it says was served then; what it asks for is decided by `decide`."""
        self.revision = Revision(self.revision + 1)
        self._targets[keys.target(MODEL, cohort)] = Target(
            revision=self.revision, artifact_id=artifact, who="test", why="", strategy=strategy, served=served
        )
        return self.revision

    def fail(self, cohort: Cohort = STABLE) -> None:
        """The leader's word on the standing publish."""
        key, failure = keys.target(MODEL, cohort), Failure(stage=Stage.COMMIT, reason="LATE", message="late")
        self._targets[key] = self._targets[key].model_copy(update={"failure": failure})

    def serve(self, artifact: ArtifactId | None, revision: Revision, cohort: Cohort = STABLE) -> None:
        """The commit of one."""
        self._serving[keys.serving(MODEL, cohort)] = Serving(revision=revision, artifact_id=artifact)

    def hear(self) -> None:
        """They learn what was said, and decide nothing yet."""
        self.generations.hear(self._targets, self._serving)

    def decide(self) -> list[Action]:
        """What is due, which is then done, but for loads: those are the test's."""
        going, self._letting_go = self._letting_go, []
        self.hear()
        due = self.generations.decide(self.now_s)
        for generation in going:
            generation.let_go()
            self.generations.disposed(generation)
        for action in due:
            match action:
                case StartLoad(generation):
                    assert generation.artifact_id not in self.loads, "one load of an artifact at a time"
                    self.loads[generation.artifact_id] = generation
                case Proceed(generation):
                    self._check_room(generation)
                    self.proceeding.add(generation)
                case CancelLoad(generation):
                    self.cancelled.append(generation)
                case EndStreams(generation):
                    assert generation.state is State.DRAINING
                    self.ending.append(generation)
                case Dispose(generation):
                    self.disposed.append(generation)
                    self._letting_go.append(generation)
        return due

    def settle(self) -> list[Action]:
        """All that is due until models are let go and nothing more is."""
        due = self.decide()
        while self._letting_go:
            due += self.decide()
        return due + self.decide()

    def allocate(self, artifact: ArtifactId) -> Generation:
        """Its load brings it as far as ALLOCATING: with its files, or before where others have to go first."""
        generation = self.loads[artifact]
        self.proceeding.discard(generation)
        if self.generations.takes_place(generation):
            self.generations.reached(generation, State.VERIFYING)
        self.generations.reached(generation, State.ALLOCATING)
        self.decide()
        return generation

    def fetch(self, artifact: ArtifactId) -> Generation:
        """Its load, which has waited for others to go, fetches its files and comes to ALLOCATING once more."""
        generation = self.loads[artifact]
        assert generation in self.proceeding
        self.generations.reached(generation, State.FETCHING)
        self._check_room(generation)
        return self.allocate(artifact)

    def make(self, artifact: ArtifactId) -> Generation:
        """Its load brings it as far as WARMING; others that have to go first do, for nobody uses them."""
        has_place = self.generations.takes_place(self.loads[artifact])
        generation = self.allocate(artifact)
        if not has_place:
            self.now_s += TICKET_TTL_S
            self.settle()
            self.fetch(artifact)
        assert generation in self.proceeding
        self.generations.loaded(generation, CountingModel())
        return generation

    def stop(self, artifact: ArtifactId) -> None:
        """Its load comes to an end."""
        self.generations.stopped(self.loads.pop(artifact))

    def bring_up(self, artifact: ArtifactId) -> Generation:
        """Its load goes well, as far as it is wanted."""
        self.settle()
        generation = self.make(artifact)
        self.generations.activate(generation)
        self.stop(artifact)
        self.decide()
        return generation

    def publish(self, artifact: ArtifactId, cohort: Cohort = STABLE) -> Generation:
        """From the target to the commit."""
        revision = self.target(artifact, cohort)
        self.decide()
        if artifact in self.loads:
            self.bring_up(artifact)
        self.serve(artifact, revision, cohort)
        self.decide()
        return self.held(artifact)

    def held(self, artifact: ArtifactId) -> Generation:
        with self.generations.borrow(artifact) as borrowed:
            assert isinstance(borrowed.lender, Generation)
            return borrowed.lender

    def _check_room(self, generation: Generation) -> None:
        """No pair of it has more than one other that takes memory."""
        pairs_of = self.generations._assignments.pairs
        others = self.proceeding - {generation}
        alive = [it for it in others if it.model is not None or it.state is State.ALLOCATING]
        for pair in pairs_of(generation.artifact_id):
            assert sum(pair in pairs_of(it.artifact_id) for it in alive) < MOST_RESIDENT

    @property
    def states(self) -> dict[ArtifactId, State]:
        return {resident.artifact_id: resident.state for resident in self.generations.residents}
