"""Random walks over publishes, loads, failures, rollbacks, unpublishes and requests: nothing illegal ever happens."""

from __future__ import annotations

import contextlib
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from services.common.errors import CorruptData, HalogenError, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Cohort, Revision
from services.common.registry.publish_records import Strategy, SwapMode
from services.common.registry.records import GenerationState as State
from tests.unit.engine.fakes import CountingModel
from tests.unit.engine.generation_world import NEW, OLD, THIRD
from tests.unit.engine.generations_alone import CANARY, STABLE, TICKET_TTL_S, GenerationsAlone

ARTIFACTS: Final = (OLD, NEW, THIRD)
artifacts = st.sampled_from(ARTIFACTS)
cohorts = st.sampled_from((STABLE, CANARY))
faults = st.sampled_from((CorruptData("torn"), Unavailable("away")))
modes = st.sampled_from((None, None, SwapMode.DRAIN_THEN_LOAD))


class Walk(RuleBasedStateMachine):
    """What operators, loaders, schedulers and callers may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.it = GenerationsAlone(max_drain_s=2 * TICKET_TTL_S)
        self.targets: dict[Cohort, tuple[Revision, ArtifactId | None]] = {}
        self.served: dict[Cohort, ArtifactId] = {}
        self.draining: set[Cohort] = set()  # whose publish lets what is served go
        self.missing: set[Cohort] = set()  # for which it has gone, and is not back yet
        self.requests: list[tuple[ArtifactId, contextlib.ExitStack]] = []

    @rule(artifact=artifacts, cohort=cohorts, mode=modes)
    def publish(self, artifact: ArtifactId, cohort: Cohort, mode: SwapMode | None = None) -> None:
        self.targets[cohort] = self.it.target(artifact, cohort, Strategy(mode=mode)), artifact
        (self.draining.add if mode else self.draining.discard)(cohort)
        self.it.decide()

    @rule(cohort=cohorts)
    def unpublish(self, cohort: Cohort) -> None:
        revision = self.it.target(None, cohort)
        self.it.serve(None, revision, cohort)
        self.targets[cohort] = revision, None
        self.served.pop(cohort, None)
        self.draining.discard(cohort)
        self.it.decide()

    @rule(cohort=cohorts)
    def commit(self, cohort: Cohort) -> None:
        revision, artifact = self.targets.get(cohort, (Revision(0), None))
        if artifact and self.it.states.get(artifact) is State.ACTIVE:
            self.it.serve(artifact, revision, cohort)
            self.served[cohort] = artifact
            self.draining.discard(cohort)
        self.it.decide()

    @rule(artifact=artifacts, cohort=cohorts)
    def swap(self, artifact: ArtifactId, cohort: Cohort) -> None:
        """All that goes well, if nothing else is on its way."""
        self.publish(artifact, cohort)
        while artifact in self.it.loads and not self._is_waiting(artifact):
            self._go_on(artifact, is_late=False)
        self.commit(cohort)

    @precondition(lambda self: self.it.loads)
    @rule(data=st.data(), is_late=st.booleans())
    def go_on(self, data: st.DataObject, is_late: bool) -> None:
        self._go_on(data.draw(st.sampled_from(sorted(self.it.loads))), is_late=is_late)

    def _go_on(self, artifact: ArtifactId, *, is_late: bool) -> None:
        generation = self.it.loads[artifact]
        match generation.state:
            case State.FETCHING:
                self.it.proceeding.discard(generation)
                has_place = self.it.generations.takes_place(generation)
                self.it.generations.reached(generation, State.VERIFYING if has_place else State.ALLOCATING)
            case State.VERIFYING:
                self.it.proceeding.discard(generation)
                self.it.generations.reached(generation, State.ALLOCATING)
            case State.ALLOCATING:
                if generation in self.it.proceeding:  # else it waits for a drain
                    self.it.generations.loaded(generation, CountingModel())
            case State.WARMING:
                self.it.hear()
                self.it.generations.activate(generation)
                self.it.stop(generation.artifact_id)
            case _:  # its thread could not be stopped in time
                if is_late:
                    self.it.generations.loaded(generation, CountingModel())
                self.it.stop(generation.artifact_id)
        self.it.decide()

    @precondition(lambda self: self.it.loads)
    @rule(data=st.data(), fault=faults, steps=st.integers(0, 3))
    def fail(self, data: st.DataObject, fault: HalogenError, steps: int) -> None:
        artifact = data.draw(st.sampled_from(sorted(self.it.loads)))
        for _ in range(steps):
            if self.it.loads[artifact].state in {State.FETCHING, State.VERIFYING, State.ALLOCATING}:
                self._go_on(artifact, is_late=False)
        self._fail(artifact, fault)
        self.it.decide()

    @rule(artifact=artifacts)
    def ask(self, artifact: ArtifactId) -> None:
        request = contextlib.ExitStack()
        with contextlib.suppress(PreconditionFailed):
            request.enter_context(self.it.generations.borrow(artifact))
            self.requests.append((artifact, request))

    @precondition(lambda self: self.requests)
    @rule()
    def answer(self) -> None:
        self.requests.pop()[1].close()
        self.it.decide()

    @precondition(lambda self: self.it.ending)
    @rule()
    def end_streams(self) -> None:
        overdue = self.it.ending.pop().artifact_id
        for artifact, request in self.requests:
            if artifact == overdue:
                request.close()
        self.requests = [each for each in self.requests if each[0] != overdue]
        self.it.decide()

    @rule(passed_s=st.sampled_from((1.0, TICKET_TTL_S)))
    def wait(self, passed_s: float) -> None:
        self.it.now_s += passed_s
        self.it.decide()

    @invariant()
    def what_gateways_route_to_answers(self) -> None:
        """Unless a publish has let it go first."""
        for cohort, artifact in self.served.items():
            is_here = self.it.states.get(artifact) in {State.ACTIVE, State.DRAINING}
            assert is_here or cohort in self.draining | self.missing
            (self.missing.discard if is_here else self.missing.add)(cohort)

    @invariant()
    def every_model_is_let_go_once_by_nobody_in_use(self) -> None:
        assert len(self.it.disposed) == len(set(self.it.disposed))
        for generation in self.it.disposed:
            assert (0, True) == (generation.users, generation.state.is_over)

    def teardown(self) -> None:
        """Once loads and requests have ended, all that is named is here or says why not; nothing is half gone."""
        for _, request in self.requests:
            request.close()
        for _ in range(8):  # drains begin and end; what was asked for anew fails, too
            for artifact in tuple(self.it.loads):
                self._fail(artifact, CorruptData("torn"))
            self.it.decide()
            self.it.now_s += TICKET_TTL_S
        self.every_model_is_let_go_once_by_nobody_in_use()
        named = {artifact for _, artifact in self.targets.values()} - {None}
        named |= {artifact for cohort, artifact in self.served.items() if cohort not in self.draining}
        assert named <= self.it.states.keys()
        assert {State.ACTIVE, State.FAILED} >= set(self.it.states.values())

    def _is_waiting(self, artifact: ArtifactId) -> bool:
        """Whether its load waits for a drain."""
        load = self.it.loads[artifact]
        return load.state is State.ALLOCATING and load not in self.it.proceeding

    def _fail(self, artifact: ArtifactId, fault: HalogenError) -> None:
        if self.it.generations.failed(self.it.loads[artifact], fault):
            self.it.stop(artifact)


def test_r_a27_no_order_of_events_makes_an_illegal_move() -> None:
    """A thousand steps and more over load, swap, rollback and unpublish; no load proceeds where two are resident.

    Fault injection: turns red when `_let_go` does not set `is_disposed`, when `_has_room` always says yes, or when
    `_MOVES` loses DRAINING -> ACTIVE.
    """
    run_state_machine_as_test(Walk, settings=settings(max_examples=60, stateful_step_count=50, deadline=None))
