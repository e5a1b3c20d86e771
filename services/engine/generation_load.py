"""The way of one generation from its artifact to ACTIVE, told to `Generations` step by step."""

from __future__ import annotations

import asyncio
import itertools
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.ids import ArtifactId
from services.common.registry.records import GenerationState as State
from services.common.stoppable import in_thread, run_stoppable
from services.common.telemetry.attributes import ARTIFACT_ID
from services.common.telemetry.tracing import going_on_from, span
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.generations import Generations
from services.engine.lender import LoadedModel
from services.engine.loaded_model import PreparedArtifact
from services.engine.warm_text import representative_prompts
from services.engine.warm_up import warm_up

log = structlog.get_logger(component="checkpoint")


class Loader(Protocol):
    async def check(self, artifact_id: ArtifactId) -> object:
        """Raises a HalogenError if this engine could not serve it."""
        ...

    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact: ...
    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]: ...


class Verified(Protocol):
    """An artifact of which a model can be built, in a thread."""

    def build(self, stop: threading.Event) -> LoadedModel: ...


class GenerationLoad:
    """Loads generations.

    Args:
        generations: Told of every step.
        engine: Runs the warm-up.
        loader: Prepares artifacts, and has their text files.
        verify: Compares what was prepared with what it should be; called in a thread.
        activate: Lets a warm generation serve, if it is still wanted.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        engine: Engine,
        loader: Loader,
        verify: Callable[[PreparedArtifact], Verified],
        activate: Callable[[Generation], None],
    ) -> None:
        self._generations = generations
        self._engine = engine
        self._loader = loader
        self._verify = verify
        self._activate = activate
        self._room: dict[
            Generation, asyncio.Event
        ] = {}  # of those that are loading, whether there is room for it

    async def run(self, generation: Generation) -> None:
        """Loads one to its end, for better or worse, trying again while that may help."""
        self._room[generation] = asyncio.Event()
        try:
            await self._run(generation)
        except asyncio.CancelledError as called_off:
            _let_go_of_frames(called_off)
            raise
        finally:
            del self._room[generation]
            self._generations.stopped(generation)

    def proceed(self, generation: Generation) -> None:
        """Lets one that is ALLOCATING take memory."""
        self._room[generation].set()

    async def _run(self, generation: Generation) -> None:
        backoff = Backoff()
        for number in itertools.count(1):
            self._tell_start(generation, number)
            if await self._try(generation):
                return
            await backoff.pause()

    def _tell_start(self, generation: Generation, number: int) -> None:
        asked, artifact_id = self._generations.asked(generation.artifact_id), generation.artifact_id
        told = {**asked.as_event, "hash": artifact_id, "artifact_id": artifact_id, "try": number}
        log.info("checkpoint_start", **told)

    async def _try(self, generation: Generation) -> bool:
        """Whether it has come to its end."""
        try:
            with self._trace(generation, "load"):
                await self._make_ready(generation)
        except Exception as failure:  # noqa: BLE001  # shown in its record, whatever it is
            return self._note(generation, failure)
        self._swap(generation)
        return True

    def _note(self, generation: Generation, failure: Exception) -> bool:
        """Whether that was the end of it."""
        _log(generation, failure)
        is_over = self._generations.failed(generation, failure)
        _let_go_of_frames(failure)
        return is_over

    async def _make_ready(self, generation: Generation) -> None:
        if generation.model is None:
            if not self._generations.takes_place(generation):
                await self._clear_the_way(generation)
            with span("prepare"):
                prepared = await self._loader.prepare(generation.artifact_id)
            with span("map"):
                await self._make(generation, prepared)
        with span("warm"):
            prompts = await representative_prompts(self._loader, generation.artifact_id)
            await warm_up(self._engine, generation, prompts)

    async def _clear_the_way(self, generation: Generation) -> None:
        """Waits for others to go, but only with what this engine could serve: its files are memory, too."""
        with span("drain"):
            await self._loader.check(generation.artifact_id)
            await self._room_for(generation)
        self._generations.reached(generation, State.FETCHING)

    async def _room_for(self, generation: Generation) -> None:
        room = self._room[generation]
        room.clear()
        self._generations.reached(generation, State.ALLOCATING)
        await room.wait()

    async def _make(self, generation: Generation, prepared: PreparedArtifact) -> None:
        def install(model: LoadedModel) -> None:
            self._generations.loaded(generation, model)

        self._generations.reached(generation, State.VERIFYING)
        verified = await in_thread(lambda: self._verify(prepared))
        await self._room_for(generation)
        install(await run_stoppable(verified.build, install))

    def _swap(self, generation: Generation) -> None:
        """It takes tickets from now on, if it is wanted; gateways use it when serving/ names it."""
        try:
            with self._trace(generation, "swap"):
                self._activate(generation)
        except Exception as failure:  # noqa: BLE001  # shown in its record, whatever it is
            _log(generation, failure)
            self._generations.not_activated(generation, failure)

    def _trace(self, generation: Generation, name: str) -> AbstractContextManager[object]:
        """A span below the publish that asked for it."""
        parent = going_on_from(self._generations.asked(generation.artifact_id).trace_parent)
        return span(name, {ARTIFACT_ID: generation.artifact_id}, parent=parent)


def _log(generation: Generation, failure: Exception) -> None:
    """With all details where it is a fault of ours; else its record says everything."""
    if not isinstance(failure, HalogenError):
        log.error("generation_failed", artifact_id=generation.artifact_id, exc_info=failure)


def _let_go_of_frames(failure: BaseException | None) -> None:
    """Clears what the frames that a failure came through hold: the weights of a model that was half made or warmed up.

    Such frames are parts of cycles, and an engine at rest makes nothing that would have cycles collected.
    """
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        failure = failure.__context__
