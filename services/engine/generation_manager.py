"""Makes the generations in this engine follow the registry: does what `Generations` decides, and tells of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from services.common.registry.records import GenerationRecord, Serving, Target
from services.common.registry.view import View
from services.engine.disposal import Disposal
from services.engine.engine import Engine
from services.engine.generation import Generation
from services.engine.generation_action import Action, CancelLoad, Dispose, EndStreams, Proceed, StartLoad
from services.engine.generation_load import GenerationLoad, Loader, Verified
from services.engine.generations import Generations
from services.engine.lender import LoadedModel
from services.engine.load_failure import drain_over
from services.engine.loaded_model import PreparedArtifact
from services.engine.recovery import NOTHING

log = structlog.get_logger(component="state_machine")


class GenerationManager:
    """Acts on targets/ and serving/.

    Args:
        generations: Decides.
        engine: Runs the warm-up, and shows the generations in its occupancy.
        loader: Prepares artifacts.
        verify: Compares what was prepared with what it should be; called in a thread.
        changed: Told the records for engines/{id} after every change.
        activated: Told of every generation that has become ACTIVE after it was loaded.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        engine: Engine,
        loader: Loader,
        verify: Callable[[PreparedArtifact], Verified],
        changed: Callable[[tuple[GenerationRecord, ...]], None],
        activated: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self.disposal = Disposal(generations.disposed, self._forget)
        self._generations = generations
        self._engine = engine
        self._changed = changed
        self._activated = activated
        self._load = GenerationLoad(
            generations, engine=engine, loader=loader, verify=verify, activate=self._activate
        )
        self._loads: dict[Generation, asyncio.Task[None]] = {}
        self._hear: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        generations.on_change = self._on_change

    async def follow(
        self, targets: View[Target], serving: View[Serving], remembered: Mapping[str, Serving] = NOTHING
    ) -> None:
        """Acts on every change of the two views, for ever.

        Args:
            targets: Mirror of targets/.
            serving: Mirror of serving/.
            remembered: What serving/ said when this engine was last here; followed at once, if there is any, before the
                registry has been heard.
        """
        self._generations.hear({}, remembered)
        self._hear = lambda: self._generations.hear(targets.records, serving.records)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake_after_changes(targets))
            group.create_task(self._wake_after_changes(serving))
            group.create_task(self.disposal.work())
            if not remembered:
                await asyncio.gather(targets.synced(), serving.synced())
            while True:
                self._wake.clear()
                self._hear()
                self._tell()  # of one artifact, a new revision
                for action in self._generations.decide(asyncio.get_running_loop().time()):
                    self._act(action, group)
                await self._next_wake()

    def _act(self, action: Action, group: asyncio.TaskGroup) -> None:
        """At once: nothing may come between what is decided and what is done."""
        match action:
            case StartLoad(generation):
                task = self._loads[generation] = group.create_task(self._load.run(generation))
                task.add_done_callback(lambda _: self._loads.pop(generation))
            case Proceed(generation):
                self._load.proceed(generation)
            case CancelLoad(generation):
                self._loads[generation].cancel()
            case EndStreams(generation):
                self._end_streams(generation)
            case Dispose(generation):
                self.disposal.take(generation)

    async def _forget(self, model: LoadedModel) -> None:
        await self._engine.forget(model)

    def _end_streams(self, generation: Generation) -> None:
        assert generation.model is not None
        ended = self._engine.end_all(generation.model, drain_over())
        log.warning("drain_over", artifact_id=generation.artifact_id, ended=ended)

    def _activate(self, generation: Generation) -> None:
        """As the registry has it by now."""
        self._hear()
        if self._generations.activate(generation):
            self._activated(generation)

    def _on_change(self) -> None:
        self._tell()
        self._wake.set()

    def _tell(self) -> None:
        self._engine.occupancy.set_generations(self._generations.residents)
        self._changed(self._generations.records)

    async def _wake_after_changes(self, view: View[Any]) -> None:
        async with contextlib.aclosing(view.changes()) as changes:
            async for _ in changes:
                self._wake.set()

    async def _next_wake(self) -> None:
        """Returns when something has changed or is due by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._generations.next_due_s):
                await self._wake.wait()
