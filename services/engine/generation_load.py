"""The way of one generation from its artifact to ACTIVE, told to `Generations` step by step."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError, NotFound, Overloaded, Unavailable
from services.common.ids import ArtifactId
from services.common.stoppable import run_stoppable
from services.common.telemetry.attributes import ARTIFACT_ID
from services.common.telemetry.tracing import going_on_from, span
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.generations import Generations
from services.engine.lender import LoadedModel
from services.engine.loaded_model import PreparedArtifact
from services.engine.warm_up import warm_up

_WORTH_RETRYING: Final = (
    Unavailable,
    Overloaded,
    NotFound,
)  # an artifact may reach the store after its target

log = structlog.get_logger()


class Loader(Protocol):
    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact: ...


class GenerationLoad:
    """Loads generations.

    Args:
        generations: Told of every step.
        engine: Runs the warm-up.
        loader: Prepares artifacts.
        load: Makes a model of what was prepared; called in a thread.
        activate: Lets a warm generation serve; whether it does.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        engine: Engine,
        loader: Loader,
        load: Callable[[PreparedArtifact], LoadedModel],
        activate: Callable[[Generation], bool],
    ) -> None:
        self._generations = generations
        self._engine = engine
        self._loader = loader
        self._load = load
        self._activate = activate

    async def run(self, generation: Generation) -> None:
        """Loads one to its end, for better or worse, trying again while that may help."""
        try:
            await self._run(generation)
        finally:
            self._generations.stopped(generation)

    async def _run(self, generation: Generation) -> None:
        backoff = Backoff()
        while not await self._try(generation):
            await backoff.pause()

    async def _try(self, generation: Generation) -> bool:
        """Whether it has come to its end."""
        log.info("checkpoint_start", artifact_id=generation.artifact_id)
        try:
            with self._trace(generation, "load"):
                await self._make_ready(generation)
        except _WORTH_RETRYING as failure:
            generation.explain(failure.message)
            _let_go_of_frames(failure)
            return False
        except Exception as failure:  # noqa: BLE001  # shown in its record, whatever it is
            self._generations.failed(generation, _told(generation, failure))
            _let_go_of_frames(failure)
        else:
            self._swap(generation)
        return True

    async def _make_ready(self, generation: Generation) -> None:
        if generation.model is None:
            with span("prepare"):
                prepared = await self._loader.prepare(generation.artifact_id)
            with span("map"):
                await self._make(generation, prepared)
        with span("warm"):
            await warm_up(self._engine, generation)

    async def _make(self, generation: Generation, prepared: PreparedArtifact) -> None:
        def install(model: LoadedModel) -> None:
            self._generations.loaded(generation, model)

        install(await run_stoppable(lambda _stop: self._load(prepared), install))

    def _swap(self, generation: Generation) -> None:
        with self._trace(generation, "swap"):
            if self._activate(generation):
                log.info("atomic_swap_commit", artifact_id=generation.artifact_id)

    def _trace(self, generation: Generation, name: str) -> AbstractContextManager[object]:
        """A span below the publish that asked for it."""
        parent = going_on_from(self._generations.trace_parent(generation.artifact_id))
        return span(name, {ARTIFACT_ID: generation.artifact_id}, parent=parent)


def _told(generation: Generation, failure: Exception) -> str:
    if isinstance(failure, HalogenError):
        return failure.message
    log.error("generation_failed", artifact_id=generation.artifact_id, exc_info=failure)
    return "it could not be loaded; the engine's log has the details"


def _let_go_of_frames(failure: BaseException | None) -> None:
    """Clears what the frames that a failure came through hold: the weights of a model that was half made."""
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        failure = failure.__context__
