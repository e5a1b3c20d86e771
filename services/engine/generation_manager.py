"""Makes the generations in this engine follow the registry: load, warm up, serve, drain, retire."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError, NotFound, Overloaded, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Revision
from services.common.registry.records import GenerationRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.common.registry.view import View
from services.common.telemetry.attributes import ARTIFACT_ID
from services.common.telemetry.tracing import going_on_from, span
from services.engine.assignments import Assignments, Pair
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.lender import Lender, LoadedModel
from services.engine.loaded_model import PreparedArtifact
from services.engine.occupancy import ResidentGeneration
from services.engine.warm_up import warm_up

_WORTH_RETRYING: Final = (
    Unavailable,
    Overloaded,
    NotFound,
)  # an artifact may reach the store after its target

log = structlog.get_logger()


class Borrowed(NamedTuple):
    """What a request runs on."""

    lender: Lender
    model: LoadedModel


class Loader(Protocol):
    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact: ...


class GenerationManager:
    """Acts on targets/ and serving/.

    A new generation is loaded beside the old one. The old one drains once nothing names it and its successor
    is active here; it is retired when tickets granted for it have expired and its last request has ended.

    Args:
        engine: Runs the warm-up, and shows the generations in its occupancy.
        loader: Prepares artifacts.
        load: Makes a model of what was prepared; called in a thread.
        assignments: Which pairs this engine is for.
        ticket_ttl_s: The longest that a granted ticket may still come in.
        changed: Told the records for engines/{id} after every change.
        activated: Told of every generation that has become ACTIVE after it was loaded.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        loader: Loader,
        load: Callable[[PreparedArtifact], LoadedModel],
        assignments: Assignments,
        ticket_ttl_s: float,
        changed: Callable[[tuple[GenerationRecord, ...]], None],
        activated: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._loader = loader
        self._load = load
        self._assignments = assignments
        self._ticket_ttl_s = ticket_ttl_s
        self._changed = changed
        self._activated = activated
        self._generations: dict[ArtifactId, Generation] = {}
        self._loads: dict[ArtifactId, asyncio.Task[None]] = {}
        self._asked: dict[ArtifactId, frozenset[Revision]] = {}  # by whom each load was asked for
        self._drained_at: dict[ArtifactId, float] = {}
        self._wake = asyncio.Event()
        self._held_back = ""

    async def follow(self, targets: View[Target], serving: View[Serving]) -> None:
        """Acts on every change of the two views, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake_after_changes(targets))
            group.create_task(self._wake_after_changes(serving))
            await asyncio.gather(targets.synced(), serving.synced())
            while True:
                self._wake.clear()
                self._assignments.hear(targets.records, serving.records)
                self._changed(self.records)  # of one artifact, a new revision
                self._reconcile(group, asyncio.get_running_loop().time())
                await self._next_wake()

    @property
    def is_ready(self) -> bool:
        """Whether any generation serves."""
        return any(generation.state is State.ACTIVE for generation in self._generations.values())

    @property
    def missing(self) -> str:
        """What it lacks to take tickets; empty when a generation does."""
        return self._held_back or ("" if self.is_ready else "no generation is ACTIVE")

    def hold_back(self, why: str) -> None:
        """Shows ACTIVE generations as DRAINING, so that no more tickets are granted, until `why` is empty.

        Tickets that were granted before are honoured: nothing changes but what others are told.
        """
        if why != self._held_back:
            self._held_back = why
            self._on_change()

    @property
    def records(self) -> tuple[GenerationRecord, ...]:
        """What this engine holds or fails to hold, as others are told."""
        records = self._assignments.records(self._generations)
        if not self._held_back:
            return records
        return tuple(
            each.model_copy(update={"state": _held_back(each.state), "error": self._held_back})
            for each in records
        )

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
    def weights_bytes(self) -> Mapping[ArtifactId, int]:
        """Mapped weights of every artifact that is loaded."""
        loaded = self._generations.values()
        return {each.artifact_id: each.model.weights_bytes for each in loaded if each.model}

    @contextlib.contextmanager
    def borrow(self, artifact_id: ArtifactId) -> Iterator[Borrowed]:
        """The generation that serves an artifact, in use while the scope lasts.

        Raises:
            PreconditionFailed: None does (any more).
        """
        generation = self._generations.get(artifact_id)
        if generation is None or generation.state not in {State.ACTIVE, State.DRAINING}:
            raise PreconditionFailed(
                "this engine does not serve that artifact (any more); route again", reason="REVISION_RETIRED"
            )
        with generation.use() as model:
            yield Borrowed(generation, model)

    def _reconcile(self, group: asyncio.TaskGroup, now: float) -> None:
        wanted = self._assignments.wanted()
        for artifact_id in wanted:
            self._want(artifact_id, group)
        for artifact_id in self._generations.keys() - wanted:
            self._unwant(self._generations[artifact_id], now)

    def _want(self, artifact_id: ArtifactId, group: asyncio.TaskGroup) -> None:
        asked = self._assignments.revisions(artifact_id)
        generation = self._generations.get(artifact_id)
        if generation is None:
            generation = Generation(artifact_id, self._on_change)
            self._generations[artifact_id] = generation
            self._asked[artifact_id] = asked
            self._loads[artifact_id] = group.create_task(self._bring_up(generation))
            self._on_change()
        elif generation.state is State.DRAINING:
            del self._drained_at[artifact_id]
            generation.advance(State.ACTIVE)
        elif generation.state is State.FAILED and self._asked[artifact_id] != asked:
            self._retire(generation)  # published anew: the next pass loads it anew

    def _unwant(self, generation: Generation, now: float) -> None:
        artifact_id = generation.artifact_id
        match generation.state:
            case State.ACTIVE if self._assignments.replaced(artifact_id, self._generations):
                self._drained_at[artifact_id] = now + self._ticket_ttl_s
                generation.advance(State.DRAINING)
            case State.DRAINING if now >= self._drained_at[artifact_id] and not generation.users:
                del self._drained_at[artifact_id]
                self._retire(generation)
            case State.FETCHING if not self._loads[artifact_id].cancelling():
                self._loads[artifact_id].cancel()  # it retires itself; what is warming is done in a moment
            case State.FAILED:
                self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        generation.advance(State.RETIRED)
        del self._generations[generation.artifact_id], self._asked[generation.artifact_id]
        self._assignments.forget(generation.artifact_id)
        self._on_change()

    async def _bring_up(self, generation: Generation) -> None:
        """Loads one generation to ACTIVE or FAILED, trying again while that may help."""
        backoff = Backoff()
        try:
            while not await self._try_to_bring_up(generation):
                await backoff.pause()
        except asyncio.CancelledError:
            if generation.state is State.FETCHING:
                self._retire(generation)
            raise
        finally:
            del self._loads[generation.artifact_id]

    async def _try_to_bring_up(self, generation: Generation) -> bool:
        """Whether it is settled, for better or worse."""
        log.info("checkpoint_start", artifact_id=generation.artifact_id)
        told = {ARTIFACT_ID: generation.artifact_id}
        parent = going_on_from(self._assignments.trace_parent(generation.artifact_id))
        try:
            with span("load", told, parent=parent):
                await self._make_ready(generation)
        except _WORTH_RETRYING as failure:
            self._wait_for(generation, failure)
            return False
        except HalogenError as failure:
            generation.advance(State.FAILED, failure.message)
        except Exception:
            log.exception("generation_failed", artifact_id=generation.artifact_id)
            generation.advance(State.FAILED, "it could not be loaded; the engine's log has the details")
        else:
            with span("swap", told, parent=parent):
                generation.advance(State.ACTIVE)
                log.info("atomic_swap_commit", artifact_id=generation.artifact_id)
            self._activated(generation)
        return True

    async def _make_ready(self, generation: Generation) -> None:
        with span("prepare"):
            prepared = await self._loader.prepare(generation.artifact_id)
        with span("map"):
            generation.install(await asyncio.to_thread(self._load, prepared))
        generation.advance(State.WARMING)
        with span("warm"):
            await warm_up(self._engine, generation)

    def _wait_for(self, generation: Generation, failure: HalogenError) -> None:
        if generation.state is State.WARMING:
            generation.advance(State.FETCHING)
        generation.explain(failure.message)

    def _on_change(self) -> None:
        residents = [_resident(generation) for generation in self._generations.values()]
        if self._held_back:
            residents = [dataclasses.replace(each, state=_held_back(each.state)) for each in residents]
        self._engine.occupancy.set_generations(tuple(residents))
        self._changed(self.records)
        self._wake.set()

    async def _wake_after_changes(self, view: View[Any]) -> None:
        async with contextlib.aclosing(view.changes()) as changes:
            async for _ in changes:
                self._wake.set()

    async def _next_wake(self) -> None:
        """Returns when something has changed or a drain may be over."""
        now = asyncio.get_running_loop().time()
        next_drain = min((at for at in self._drained_at.values() if at > now), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(next_drain):
                await self._wake.wait()


def _held_back(state: State) -> State:
    """The state that others see while nothing new is taken."""
    return State.DRAINING if state is State.ACTIVE else state


def _resident(generation: Generation) -> ResidentGeneration:
    model = generation.model
    return ResidentGeneration(
        artifact_id=generation.artifact_id,
        state=generation.state,
        block_bytes=model.block_bytes if model else 0,
        max_context_tokens=model.max_context_tokens if model else 0,
    )
