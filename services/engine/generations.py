"""What this engine holds and what is due: load, activate, drain, retire, dispose. Pure; `generation_manager` acts.

Every method is one synchronous call. The event loop that makes them is the lock under which artifact, state and
users are read together; nothing that loads, computes or unmaps runs under it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from services.common.backoff import Backoff
from services.common.errors import PreconditionFailed
from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_records import Stage
from services.common.registry.records import GenerationRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.engine.assignments import Assignments
from services.engine.generation import Generation
from services.engine.generation_action import Action
from services.engine.lender import Lender, LoadedModel
from services.engine.load_failure import failure_of, is_of_content, may_pass
from services.engine.named import Asked, Pair
from services.engine.occupancy import ResidentGeneration
from services.engine.succession import Succession, retries


class Borrowed(NamedTuple):
    """What a request runs on."""

    lender: Lender
    model: LoadedModel


class Generations:
    """The generations of one engine, none twice.

    A new one is loaded beside the old one. The old one drains once nothing names it and gateways have gone on, or its
    successor is active here; it is retired when tickets granted for it have expired and its last request has ended. At
    most two of a model@cohort have memory: a third one waits, ALLOCATING, for the end of a drain before its files are
    fetched. One that is published by DRAIN_THEN_LOAD waits for the end of all others of its cohort. `Succession` has the
    rows.

    Args:
        assignments: Which artifacts are asked of this engine.
        ticket_ttl_s: The longest that a granted ticket may still come in.
        max_drain_s: How long a drain lasts before streams are ended for the sake of a generation that waits; 0 is for ever.
        retries: Makes the pauses before tries of what is served and has failed here.

    Attributes:
        on_change: Called after every change that others are told of, or that may make something due; set by the owner.
    """

    def __init__(
        self,
        assignments: Assignments,
        *,
        ticket_ttl_s: float,
        max_drain_s: float = 0,
        retries: Callable[[], Backoff] = retries,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._assignments = assignments
        self._succession = Succession(
            assignments,
            ticket_ttl_s=ticket_ttl_s,
            max_drain_s=max_drain_s,
            retries=retries,
            changed=self._tell,
        )
        self._held = self._succession.held
        self._held_back = ""

    def hear(self, targets: Mapping[str, Target], serving: Mapping[str, Serving]) -> None:
        """Takes in the registry's records as they stand."""
        self._assignments.hear(targets, serving)

    def decide(self, now_s: float) -> list[Action]:
        """What is due.

        Args:
            now_s: Monotonic seconds.
        """
        return self._succession.decide(now_s)

    @property
    def next_due_s(self) -> float | None:
        """When something becomes due by itself, on the clock of `decide`."""
        return self._succession.next_due_s

    def reached(self, generation: Generation, state: State) -> None:
        """Its load has got so far; one that was called off meanwhile stays so."""
        if not generation.state.is_over:
            held = self._held[generation.artifact_id]
            held.waits_for_room, held.fault = state is State.ALLOCATING, None
            held.has_files = generation.state is State.VERIFYING
            generation.advance(state)

    def takes_place(self, generation: Generation) -> bool:
        """Whether it has a place in memory, for its files first, from now on.

        Else others have to go before they are fetched: ALLOCATING comes first, then, and once more after.
        """
        return generation.state.is_over or self._succession.take_place(generation.artifact_id)

    def has_waited(self, artifact_id: ArtifactId) -> bool:
        """Whether others have just gone for it, whose files the loader may yet have to let go. In any thread."""
        held = self._held.get(artifact_id)
        return held is not None and held.has_drained

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
        if not may_pass(error, tries=held.tries, is_served=is_served, has_drained=held.has_drained):
            held.may_recover = not is_of_content(error)
            generation.advance(State.FAILED, failure)
            return True
        if generation.model is None:
            held.is_resident = held.waits_for_room = False
        if generation.state in {State.VERIFYING, State.ALLOCATING}:
            generation.advance(State.FETCHING)
        held.fault = failure
        generation.explain(failure.message)
        return False

    def not_activated(self, generation: Generation, error: Exception) -> None:
        """It could not be taken into service, by a fault of ours."""
        if generation.state.is_loading:
            failure = failure_of(error, generation.state)
            self._held[generation.artifact_id].may_recover = True
            generation.advance(State.FAILED, failure.model_copy(update={"stage": Stage.SWAP}))

    def activate(self, generation: Generation) -> bool:
        """Lets a warm generation serve, if it is still named: what is desired is read in the same call."""
        if generation.state.is_over:
            return False
        is_wanted = self._succession.is_wanted(generation.artifact_id)
        generation.advance(State.ACTIVE if is_wanted else State.SUPERSEDED)
        return is_wanted

    def stopped(self, generation: Generation) -> None:
        """Its load has come to an end."""
        self._held[generation.artifact_id].is_loading = False
        self.on_change()

    def disposed(self, generation: Generation) -> None:
        """Its model is gone from memory, or never will be."""
        self._succession.disposed(generation)

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
        records = self._assignments.records(self._held)
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

    @property
    def layouts(self) -> Mapping[ArtifactId, str]:
        """How the weights of every artifact lie that is loaded; empty: as they are stored."""
        return {name: held.generation.layout for name, held in self._held.items() if held.generation.model}

    def asked(self, artifact_id: ArtifactId) -> Asked:
        """Who asks for an artifact that is held; if several do, the latest."""
        return self._assignments.asked(artifact_id)

    def _tell(self) -> None:
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
