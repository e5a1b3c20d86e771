"""What this engine holds and what is due: load, activate, drain, retire, dispose. Pure; `generation_manager` acts.

Every method is one synchronous call. The event loop that makes them is the lock under which artifact, state and
users are read together; nothing that loads, computes or unmaps runs under it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from services.common.errors import PreconditionFailed
from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_records import Stage
from services.common.registry.records import GenerationRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.engine.assignments import Asked, Assignments, Pair
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose, Proceed, StartLoad
from services.engine.held_generation import HeldGeneration
from services.engine.lender import Lender, LoadedModel
from services.engine.load_failure import WAITING_FOR_DRAIN, failure_of, may_pass, timeout_of
from services.engine.occupancy import ResidentGeneration

MOST_RESIDENT: Final = 2  # of a model@cohort: the one that serves, and the next or the last


class Borrowed(NamedTuple):
    """What a request runs on."""

    lender: Lender
    model: LoadedModel


class Generations:
    """The generations of one engine, none twice.

    A new one is loaded beside the old one. The old one drains once nothing names it and gateways have gone on, or its
    successor is active here; it is retired when tickets granted for it have expired and its last request has ended. At
    most two of a model@cohort are resident: a third one waits, ALLOCATING, for the end of a drain.

    Args:
        assignments: Which artifacts are asked of this engine.
        ticket_ttl_s: The longest that a granted ticket may still come in.
        timeout_s: How long a candidate may take from ALLOCATING to ACTIVE, the wait for a drain included, unless its
            publish says so.

    Attributes:
        on_change: Called after every change that others are told of, or that may make something due; set by the owner.
    """

    def __init__(self, assignments: Assignments, *, ticket_ttl_s: float, timeout_s: float) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._assignments = assignments
        self._ticket_ttl_s = ticket_ttl_s
        self._timeout_s = timeout_s
        self._held: dict[ArtifactId, HeldGeneration] = {}
        self._held_back = ""

    def hear(self, targets: Mapping[str, Target], serving: Mapping[str, Serving]) -> None:
        """Takes in the registry's records as they stand."""
        self._assignments.hear(targets, serving)

    def decide(self, now_s: float) -> list[Action]:
        """What is due.

        Args:
            now_s: Monotonic seconds.
        """
        wanted = self._assignments.wanted()
        due: list[Action] = []
        for held in tuple(self._held.values()):
            due += self._settle(held, now_s, is_wanted=held.generation.artifact_id in wanted)
        due += [self._start(artifact_id) for artifact_id in sorted(wanted - self._held.keys())]
        return due

    @property
    def next_due_s(self) -> float | None:
        """When something becomes due by itself, on the clock of `decide`."""
        times = (self._due_s(held) for held in self._held.values())
        return min((time_s for time_s in times if time_s is not None), default=None)

    def reached(self, generation: Generation, state: State) -> None:
        """Its load has got so far; one that was called off meanwhile stays so."""
        if not generation.state.is_over:
            generation.advance(state)

    def loaded(self, generation: Generation, model: LoadedModel) -> None:
        """It has its model; of one that was called off meanwhile, the model is disposed of with it."""
        generation.install(model)
        self.reached(generation, State.WARMING)

    def failed(self, generation: Generation, error: Exception) -> bool:
        """A try has failed; whether it was the last one."""
        if generation.state.is_over:
            return True
        held = self._held[generation.artifact_id]
        held.tries += 1
        is_served = self._assignments.is_served(generation.artifact_id)
        failure = failure_of(error, generation.state)
        if not may_pass(error, tries=held.tries, is_served=is_served):
            generation.advance(State.FAILED, failure)
            return True
        if generation.state in {State.VERIFYING, State.ALLOCATING}:
            held.is_resident = False
            generation.advance(State.FETCHING)
        generation.explain(failure.message)
        return False

    def not_activated(self, generation: Generation, error: Exception) -> None:
        """It could not be taken into service, by a fault of ours."""
        if generation.state.is_loading:
            failure = failure_of(error, generation.state)
            generation.advance(State.FAILED, failure.model_copy(update={"stage": Stage.SWAP}))

    def activate(self, generation: Generation) -> bool:
        """Lets a warm generation serve, if it is still named: what is desired is read in the same call."""
        if generation.state.is_over:
            return False
        is_wanted = generation.artifact_id in self._assignments.wanted()
        generation.advance(State.ACTIVE if is_wanted else State.SUPERSEDED)
        return is_wanted

    def stopped(self, generation: Generation) -> None:
        """Its load has come to an end."""
        self._held[generation.artifact_id].is_loading = False
        self.on_change()

    @contextlib.contextmanager
    def borrow(self, artifact_id: ArtifactId) -> Iterator[Borrowed]:
        """The generation that serves an artifact, in use while the scope lasts.

        Raises:
            PreconditionFailed: None does (any more).
        """
        held = self._held.get(artifact_id)
        if held is None or held.generation.state not in {State.ACTIVE, State.DRAINING}:
            raise PreconditionFailed(
                "this engine does not serve that artifact (any more); route again", reason="REVISION_RETIRED"
            )
        with held.generation.use() as model:
            yield Borrowed(held.generation, model)

    def hold_back(self, why: str) -> None:
        """Shows ACTIVE generations as DRAINING, so that no more tickets are granted, until `why` is empty.

        Tickets that were granted before are honoured: nothing changes but what others are told.
        """
        if why != self._held_back:
            self._held_back = why
            self.on_change()

    @property
    def missing(self) -> str:
        """What the engine lacks to take tickets; empty when a generation does."""
        is_ready = any(held.generation.state is State.ACTIVE for held in self._held.values())
        return self._held_back or ("" if is_ready else "no generation is ACTIVE")

    @property
    def records(self) -> tuple[GenerationRecord, ...]:
        """What this engine holds or fails to hold, as others are told."""
        records = self._assignments.records(self._by_artifact)
        if not self._held_back:
            return records
        return tuple(
            each.model_copy(update={"state": self._shown(each.state), "error": self._held_back})
            for each in records
        )

    @property
    def residents(self) -> tuple[ResidentGeneration, ...]:
        """The same, as schedulers are told."""
        return tuple(self._resident(held.generation) for held in self._held.values())

    @property
    def desired(self) -> Mapping[Pair, Revision]:
        """The target of every pair that this engine is for."""
        return self._assignments.desired

    @property
    def actual(self) -> Mapping[Pair, Revision]:
        """The latest revision that is ACTIVE, of every pair that has a target; 0 is none."""
        active = {Pair(r.model, r.cohort): r.revision for r in self.records if r.state is State.ACTIVE}
        return {pair: active.get(pair, Revision(0)) for pair in self.desired}

    @property
    def conflicts(self) -> int:
        """Records of the registry that were refused so far: they gave a known revision another artifact."""
        return self._assignments.conflicts

    @property
    def weights_bytes(self) -> Mapping[ArtifactId, int]:
        """Mapped weights of every artifact that is loaded."""
        models = ((artifact_id, held.generation.model) for artifact_id, held in self._held.items())
        return {artifact_id: model.weights_bytes for artifact_id, model in models if model}

    def asked(self, artifact_id: ArtifactId) -> Asked:
        """Who asks for an artifact that is held; if several do, the latest."""
        return self._assignments.asked(artifact_id)

    @property
    def _by_artifact(self) -> dict[ArtifactId, Generation]:
        return {artifact_id: held.generation for artifact_id, held in self._held.items()}

    def _start(self, artifact_id: ArtifactId) -> StartLoad:
        generation = Generation(artifact_id, self.on_change)
        self._held[artifact_id] = HeldGeneration(generation, self._assignments.revisions(artifact_id))
        self.on_change()
        return StartLoad(generation)

    def _settle(self, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Iterator[Action]:
        generation = held.generation
        if generation.state.is_loading:
            yield from self._bring_on(held, now_s, is_wanted=is_wanted)
        elif generation.state is State.ACTIVE and not is_wanted:
            self._drain_if_replaced(held, now_s)
        elif generation.state is State.DRAINING and is_wanted:
            generation.advance(State.ACTIVE)
        elif generation.state is State.DRAINING and now_s >= held.drained_at_s and not generation.users:
            generation.advance(State.RETIRED)
        if generation.state.is_over and not held.is_loading and not generation.users:
            yield from self._let_go(held, is_wanted=is_wanted)

    def _bring_on(self, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Iterator[Action]:
        generation = held.generation
        if generation.state is State.ALLOCATING and held.allocating_since_s is None:
            held.allocating_since_s = now_s
        deadline_s = self._due_s(held)
        if not is_wanted:
            generation.advance(State.SUPERSEDED)
            yield CancelLoad(generation)
        elif deadline_s is not None and now_s >= deadline_s:
            timeout_s = self._timeout_of(held)
            generation.advance(State.FAILED, timeout_of(generation.state, timeout_s, generation.error))
            yield CancelLoad(generation)
        elif generation.state is State.ALLOCATING and not held.is_resident:
            yield from self._allocate(held)

    def _allocate(self, held: HeldGeneration) -> Iterator[Action]:
        if self._has_room(held):
            held.is_resident = True
            held.generation.explain("")
            yield Proceed(held.generation)
        elif held.generation.error != WAITING_FOR_DRAIN:
            held.generation.explain(WAITING_FOR_DRAIN)

    def _has_room(self, held: HeldGeneration) -> bool:
        """Whether no model@cohort would have too many resident."""
        others = [other.generation.artifact_id for other in self._held.values() if other.is_resident]
        shared: Counter[Pair] = Counter()
        for artifact_id in others:
            shared.update(self._assignments.pairs(artifact_id))
        pairs = self._assignments.pairs(held.generation.artifact_id)
        return all(shared[pair] < MOST_RESIDENT for pair in pairs)

    def _due_s(self, held: HeldGeneration) -> float | None:
        """When something becomes due with it; what gateways route to is never late."""
        if held.generation.state.is_loading and self._assignments.is_served(held.generation.artifact_id):
            return None
        return held.due_s(self._timeout_of(held))

    def _timeout_of(self, held: HeldGeneration) -> float:
        return self._assignments.timeout_s(held.generation.artifact_id, self._timeout_s)

    def _drain_if_replaced(self, held: HeldGeneration, now_s: float) -> None:
        if self._assignments.replaced(held.generation.artifact_id, self._by_artifact):
            held.drained_at_s = now_s + self._ticket_ttl_s
            held.generation.advance(State.DRAINING)

    def _let_go(self, held: HeldGeneration, *, is_wanted: bool) -> Iterator[Action]:
        """Of one that has ended: its model first; itself unless it shows why an artifact that is asked for is not here."""
        generation = held.generation
        held.is_resident = False
        if generation.model is not None and not held.is_disposed:
            held.is_disposed = True
            yield Dispose(generation)
        is_asked_anew = held.asked != self._assignments.revisions(generation.artifact_id)
        if generation.state is not State.FAILED or not is_wanted or is_asked_anew:
            del self._held[generation.artifact_id]
            if not is_wanted:
                self._assignments.forget(generation.artifact_id)
            self.on_change()

    def _shown(self, state: State) -> State:
        """The state that others see: ACTIVE is none while nothing new is taken."""
        return State.DRAINING if self._held_back and state is State.ACTIVE else state

    def _resident(self, generation: Generation) -> ResidentGeneration:
        model = generation.model
        return ResidentGeneration(
            artifact_id=generation.artifact_id,
            state=self._shown(generation.state),
            block_bytes=model.block_bytes if model else 0,
            max_context_tokens=model.max_context_tokens if model else 0,
        )
