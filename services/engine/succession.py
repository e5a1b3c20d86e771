"""What becomes of the generations that are held: which take memory, drain, are let go, or are tried again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from services.common.backoff import Backoff
from services.common.ids import ArtifactId
from services.common.registry.records import GenerationState as State
from services.engine.assignments import Assignments
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose, EndStreams, Proceed, StartLoad
from services.engine.held_generation import HeldGeneration
from services.engine.load_failure import WAITING_FOR_ALL, WAITING_FOR_DRAIN, timeout_of
from services.engine.named import Pair

MOST_RESIDENT: Final = 2  # of a model@cohort: the one that serves, and the next or the last
_FIRST_PAUSE_S: Final = 1.0  # before what gateways route to, and has failed here, is tried again
_LONGEST_PAUSE_S: Final = 60.0


def retries() -> Backoff:
    """The pauses before what gateways route to, and has failed here, is tried again."""
    return Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


class Succession:
    """The rows by which generations follow each other; `Generations` tells what happens.

    Args:
        assignments: Which artifacts are asked of this engine.
        ticket_ttl_s: The longest that a granted ticket may still come in.
        max_drain_s: How long a drain lasts before streams are ended for the sake of those who wait; 0 is for ever.
        retries: Makes the pauses before tries of what is served.
        changed: Called after every change.

    Attributes:
        held: By artifact.
    """

    def __init__(
        self,
        assignments: Assignments,
        *,
        ticket_ttl_s: float,
        max_drain_s: float,
        retries: Callable[[], Backoff],
        changed: Callable[[], None],
    ) -> None:
        self.held: dict[ArtifactId, HeldGeneration] = {}
        self._assignments = assignments
        self._ticket_ttl_s = ticket_ttl_s
        self._max_drain_s = max_drain_s
        self._retries = retries
        self._changed = changed
        self._leaving: dict[
            Generation, list[Pair]
        ] = {}  # whose models are being let go, and whose places those have
        self._pauses: dict[ArtifactId, Backoff] = {}  # of those that are about to be tried again

    def decide(self, now_s: float) -> list[Action]:
        """What is due.

        Args:
            now_s: Monotonic seconds.
        """
        wanted, yielding = self._assignments.wanted(), self._yielding
        due: list[Action] = []
        for artifact_id, held in tuple(self.held.items()):
            yields = artifact_id in yielding
            due += self._settle(held, now_s, is_wanted=artifact_id in wanted and not yields, yields=yields)
        missing = wanted - self._assignments.making_way.withheld(self._failed) - self.held.keys()
        due += [self._start(artifact_id) for artifact_id in sorted(missing)]
        self._assignments.forget_all_but(self.held)
        self._pauses = {each: pauses for each, pauses in self._pauses.items() if each in wanted}
        return due

    def is_wanted(self, artifact_id: ArtifactId) -> bool:
        """Whether it shall be here, as things stand."""
        return artifact_id in self._assignments.wanted() - self._yielding

    def take_place(self, artifact_id: ArtifactId) -> bool:
        """Gives it a place in memory, for its files and its model; whether it has one, else others have to go first."""
        held = self.held[artifact_id]
        held.is_resident = not self._waiting_for(held)
        return held.is_resident

    def disposed(self, generation: Generation) -> None:
        """Its model is gone from memory."""
        self._leaving.pop(generation, None)
        self._changed()

    @property
    def next_due_s(self) -> float | None:
        """When something becomes due by itself, on the clock of `decide`."""
        times = (self._due_s(held) for held in self.held.values())
        return min((time_s for time_s in times if time_s is not None), default=None)

    @property
    def generations(self) -> dict[ArtifactId, Generation]:
        return {artifact_id: held.generation for artifact_id, held in self.held.items()}

    @property
    def _yielding(self) -> set[ArtifactId]:
        """What drains for others that are to come once it is gone."""
        waiting = {each for each, held in self.held.items() if held.is_waiting}
        return self._assignments.making_way.yielding(waiting)

    @property
    def _failed(self) -> set[ArtifactId]:
        return {each for each, held in self.held.items() if held.generation.state is State.FAILED}

    def _start(self, artifact_id: ArtifactId) -> StartLoad:
        generation = Generation(artifact_id, self._changed)
        pauses = self._pauses.pop(artifact_id, None) or self._retries()
        self.held[artifact_id] = HeldGeneration(
            generation, self._assignments.revisions(artifact_id), pauses=pauses
        )
        self._changed()
        return StartLoad(generation)

    def _settle(
        self, held: HeldGeneration, now_s: float, *, is_wanted: bool, yields: bool
    ) -> Iterator[Action]:
        generation = held.generation
        if generation.state.is_loading:
            yield from self._bring_on(held, now_s, is_wanted=is_wanted)
        elif generation.state is State.ACTIVE and not is_wanted:
            self._drain_if_replaced(held, now_s, yields=yields)
        elif generation.state is State.DRAINING and is_wanted:
            held.overdue_at_s = None
            generation.advance(State.ACTIVE)
        elif generation.state is State.DRAINING and now_s >= held.drained_at_s and not generation.users:
            generation.advance(State.RETIRED)
        if generation.state.is_over and not held.is_loading and not generation.users:
            yield from self._let_go(held, now_s, is_wanted=is_wanted)

    def _bring_on(self, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Iterator[Action]:
        generation = held.generation
        held.run_time(now_s)
        deadline_s = self._due_s(held)
        if not is_wanted:
            generation.advance(State.SUPERSEDED)
            yield CancelLoad(generation)
        elif deadline_s is not None and now_s >= deadline_s:
            late = timeout_of(generation.state, self._timeout_of(held), generation.error, held.fault)
            held.may_recover = True
            generation.advance(State.FAILED, late)
            yield CancelLoad(generation)
        elif held.waits_for_room:
            yield from self._allocate(held, now_s)

    def _allocate(self, held: HeldGeneration, now_s: float) -> Iterator[Action]:
        waiting_for = self._waiting_for(held)
        if held.generation.error != waiting_for:
            held.generation.explain(waiting_for)
        held.has_drained |= bool(waiting_for)
        if not waiting_for:
            held.is_resident, held.waits_for_room = True, False
            if (
                not held.has_files
                and held.generation.artifact_id not in self._assignments.making_way.candidates
            ):
                held.pause_time(now_s)
            yield Proceed(held.generation)
        else:
            yield from self._end_overdue(held, now_s)

    def _end_overdue(self, waiting: HeldGeneration, now_s: float) -> Iterator[Action]:
        """Of what drains before the one that waits: streams that have had their time."""
        for held in self.held.values():
            at_s = held.overdue_at_s
            if at_s is not None and now_s >= at_s and self._shares_a_pair(held, waiting):
                held.overdue_at_s = None
                yield EndStreams(held.generation)

    def _shares_a_pair(self, one: HeldGeneration, other: HeldGeneration) -> bool:
        pairs = self._assignments.pairs
        return not set(pairs(one.generation.artifact_id)).isdisjoint(pairs(other.generation.artifact_id))

    def _waiting_for(self, held: HeldGeneration) -> str:
        """Why it may not take memory yet; empty when it may."""
        making_way, artifact_id = self._assignments.making_way, held.generation.artifact_id
        if artifact_id in making_way.candidates:
            others = (self.held[each] for each in making_way.for_(artifact_id) if each in self.held)
            if self._leaving or any(other.is_resident for other in others):
                return WAITING_FOR_ALL
        return "" if held.is_resident or self._has_room(held) else WAITING_FOR_DRAIN

    def _has_room(self, held: HeldGeneration) -> bool:
        """Whether no model@cohort would have too many in memory, those that are being let go counted."""
        pairs_of = self._assignments.pairs
        others = (pairs_of(each) for each, other in self.held.items() if other.is_resident)
        taken = Counter(pair for pairs in (*others, *self._leaving.values()) for pair in pairs)
        return all(taken[pair] < MOST_RESIDENT for pair in pairs_of(held.generation.artifact_id))

    def _due_s(self, held: HeldGeneration) -> float | None:
        """When something becomes due with it; what gateways route to is never late."""
        if held.generation.state.is_loading and self._assignments.is_served(held.generation.artifact_id):
            return None
        if held.generation.state is State.DRAINING and held.generation.users:
            waiting = (other for other in self.held.values() if other.is_waiting)
            return held.overdue_at_s if any(self._shares_a_pair(held, other) for other in waiting) else None
        return held.due_s(self._timeout_of(held))

    def _timeout_of(self, held: HeldGeneration) -> float:
        return self._assignments.policy(held.generation.artifact_id).timeout_s

    def _drain_if_replaced(self, held: HeldGeneration, now_s: float, *, yields: bool) -> None:
        artifact_id = held.generation.artifact_id
        if yields:
            self._assignments.making_way.note(artifact_id)
        if yields or self._assignments.replaced(artifact_id, self.generations):
            held.drained_at_s = now_s + self._ticket_ttl_s
            longest_s = max(self._ticket_ttl_s, self._max_drain_s)
            held.overdue_at_s = now_s + longest_s if self._max_drain_s else None
            held.generation.advance(State.DRAINING)

    def _let_go(self, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Iterator[Action]:
        """Of one that has ended: its model first; itself unless it shows why an artifact that is asked for is not here."""
        generation = held.generation
        held.is_resident = False
        if generation.model is not None and not held.is_disposed:
            held.is_disposed = True
            self._leaving[generation] = self._assignments.pairs(generation.artifact_id)
            yield Dispose(generation)
        if generation.state is State.FAILED and is_wanted and not self._may_try_again(held, now_s):
            return
        del self.held[generation.artifact_id]
        self._changed()

    def _may_try_again(self, held: HeldGeneration, now_s: float) -> bool:
        """Whether it is asked for anew; or gateways route to it, it may do better by now, and it has paused."""
        artifact_id = held.generation.artifact_id
        if held.asked != self._assignments.revisions(artifact_id):
            return True
        if not (held.may_recover and self._assignments.is_served(artifact_id)):
            held.retry_at_s = None
        elif held.retry_at_s is None:
            held.retry_at_s = now_s + held.pauses.next_s()
        elif now_s >= held.retry_at_s:
            self._pauses[artifact_id] = held.pauses
            return True
        return False
