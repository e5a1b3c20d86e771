"""The artifacts whose text side is loaded, kept in step with what is published and served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final, NamedTuple, Protocol

import structlog

from services.common.backoff import Backoff
from services.common.errors import (
    CorruptData,
    DeadlinePassed,
    HalogenError,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from services.common.ids import ArtifactId, Cohort, ModelName
from services.common.pulse import Pulse
from services.common.registry import keys
from services.common.registry.records import Served, Serving, Target
from services.common.registry.view import View
from services.common.telemetry.attributes import ARTIFACT_ID
from services.common.telemetry.tracing import going_on_from, span
from services.gateway.rehearsal import rehearse
from services.gateway.routes import Route, Routes
from services.gateway.text_model import TextModel, TextModelReader

log = structlog.get_logger()

TOKENIZER_LOADING: Final = "TOKENIZER_LOADING"
_PASSING = (Unavailable, Overloaded, DeadlinePassed, NotFound)  # its files may be on their way to the store


class ArtifactFiles(Protocol):
    """Where artifacts' small files come from."""

    async def read(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        """The files that a text model is made of; the optional ones only if the artifact has them."""
        ...


class Routed(NamedTuple):
    route: Route
    text: TextModel


class Failed(NamedTuple):
    """An artifact that cannot be loaded, as it was last tried for a route."""

    route: Route
    error: str


class _Try(NamedTuple):
    """A load under way, and the routes that stood when it began."""

    task: asyncio.Task[None]
    routes: frozenset[Route]


class Catalog:
    """Loads the text model of every artifact that targets/ or serving/ names, and forgets the others.

    A request keeps the text model that it began with for as long as it runs. An artifact that cannot be loaded
    is tried again until it can or is no longer named, and at once when a newer publish names it; it is reported as
    failing, so nobody is routed to it.

    Args:
        targets: Mirror of targets/.
        serving: Mirror of serving/.
        files: Where artifacts' files come from.
        reader: Makes text models of them.
    """

    def __init__(
        self, targets: View[Target], serving: View[Serving], files: ArtifactFiles, reader: TextModelReader
    ) -> None:
        self._views: tuple[View[Target], View[Serving]] = (targets, serving)
        self._routes = Routes(serving.records, targets.records)
        self._files = files
        self._reader = reader
        self._loaded: dict[ArtifactId, TextModel] = {}
        self._loading: dict[ArtifactId, _Try] = {}
        self._failures: dict[ArtifactId, tuple[Failed, ...]] = {}
        self._heard = Pulse()  # beats when something was heard elsewhere
        self._version = 0
        self._moved = asyncio.Event()

    @property
    def artifact_ids(self) -> tuple[ArtifactId, ...]:
        """Artifacts that are loaded, in order."""
        return tuple(sorted(self._loaded))

    @property
    def failures(self) -> list[Failed]:
        """Artifacts that cannot be loaded and why, in order; not those whose loader is merely away."""
        return [failed for _, each in sorted(self._failures.items()) for failed in each]

    def served(self) -> list[Routed]:
        """What can be asked for now."""
        return [
            Routed(route, self._loaded[route.artifact_id])
            for route in self._routes.served()
            if route.artifact_id in self._loaded
        ]

    def readiness(self, active: Collection[ArtifactId]) -> dict[str, bool]:
        """Every ``model@cohort`` that is published, and whether it can be asked for now.

        Args:
            active: What engines have ready.
        """
        ready = (route for route, _ in self.served() if route.artifact_id in active)
        served = {f"{route.model}@{route.cohort}" for route in ready}
        return {name: name in served for name in sorted(self._routes.names())}

    def route(self, model: ModelName, cohort: Cohort | None) -> Routed:
        """Where a request goes; see `Routes.choose`.

        Raises:
            InvalidRequest, NotFound, Unavailable: It goes nowhere.
            PreconditionFailed: The same, as the artifact's text files cannot be read.
        """
        if not all(view.is_synced for view in self._views):
            raise Unavailable(
                "this gateway has just started and does not know yet what is served; try again soon",
                reason="STARTING",
                retry_after_s=0.5,
            )
        try:
            route = self._routes.choose(model, cohort)
        except Unavailable:
            for aimed in self._routes.aimed_at(model, cohort):
                self._check_failure(aimed)
            raise
        text = self._loaded.get(route.artifact_id)
        if text is None:
            self._check_failure(route)
            raise Unavailable(
                f"the tokenizer of {route.model}@{route.cohort} is being loaded; try again soon",
                reason=TOKENIZER_LOADING,
                retry_after_s=0.5,
            )
        return Routed(route, text)

    def hear(self, route: Route, served: Served) -> None:
        """Takes in what another process says is served in place of `route`; what the registry says that is newer counts."""
        if self._routes.hear(route.model, route.cohort, served):
            log.info("served_heard", key=keys.serving(route.model, route.cohort), revision=served.revision)
            self._heard.beat()

    async def moved_on(self, route: Route, limit_s: float) -> None:
        """Returns as soon as something else is served in place of `route`, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), contextlib.aclosing(self.changes()) as changes:
                async for _ in changes:
                    if route not in self._routes.served():
                        return

    def _check_failure(self, route: Route) -> None:
        if failed := self._failures.get(route.artifact_id):
            raise PreconditionFailed(
                f"this gateway cannot read the text files of {route.model}@{route.cohort} ({failed[0].error}); "
                "publish an artifact with a sound tokenizer and chat template",
                reason="TEXT_MODEL_FAILED",
            )

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yields at once, and again after what is loaded or served has changed; several changes may come as one."""
        seen = -1
        while True:
            while self._version == seen:
                await self._moved.wait()
            seen = self._version
            yield

    async def follow(self) -> None:
        """Keeps in step until cancelled."""
        async with asyncio.TaskGroup() as group:
            for changes in (*(view.changes() for view in self._views), self._heard.beats()):
                group.create_task(self._follow(changes, group))

    async def _follow(self, changes: AsyncGenerator[None, None], group: asyncio.TaskGroup) -> None:
        async for _ in changes:
            self._reconcile(group)

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        wanted = self._routes.artifact_ids()
        for artifact_id in self._failures.keys() - wanted:
            del self._failures[artifact_id]
        for artifact_id in [each for each in self._loading if each not in wanted or self._is_news(each)]:
            self._loading.pop(artifact_id).task.cancel()
        for artifact_id in self._loaded.keys() - wanted:
            del self._loaded[artifact_id]
            log.info("text_model_forgotten", artifact_id=artifact_id)
        for artifact_id in wanted - self._loaded.keys() - self._loading.keys():
            routes = self._routes.to(artifact_id)
            self._loading[artifact_id] = _Try(group.create_task(self._load(artifact_id, routes)), routes)
        self._tell()

    def _is_news(self, artifact_id: ArtifactId) -> bool:
        """Whether the artifact was named anew since its load began; the store may have been mended for that."""
        return bool(self._routes.to(artifact_id) - self._loading[artifact_id].routes)

    async def _load(self, artifact_id: ArtifactId, routes: frozenset[Route]) -> None:
        soon, later = Backoff(), Backoff(first_s=2.0, most_s=60.0)
        while True:
            try:
                text = await self._read(artifact_id)
            except HalogenError as failure:
                log.warning("text_model_failed", artifact_id=artifact_id, error=str(failure))
                self._note_failure(artifact_id, routes, failure)
                await (soon if isinstance(failure, _PASSING) else later).pause()
            else:
                break
        del self._loading[artifact_id]
        self._failures.pop(artifact_id, None)
        self._loaded[artifact_id] = text
        log.info("text_model_loaded", artifact_id=artifact_id, context_tokens=text.context_tokens)
        self._tell()

    def _note_failure(self, artifact_id: ArtifactId, routes: frozenset[Route], failure: HalogenError) -> None:
        if not isinstance(failure, _PASSING):
            self._failures[artifact_id] = tuple(Failed(route, failure.message) for route in sorted(routes))
            self._tell()

    async def _read(self, artifact_id: ArtifactId) -> TextModel:
        parent = going_on_from(self._routes.trace_parent(artifact_id))
        with span("load", {ARTIFACT_ID: artifact_id}, parent=parent):
            files = await self._files.read(artifact_id)
            try:
                text = await asyncio.to_thread(self._reader.read, artifact_id, files)
                await rehearse(text, files)
            except HalogenError:
                raise
            except Exception as fault:  # one artifact's files end no gateway
                log.exception("text_model_broken", artifact_id=artifact_id)
                raise CorruptData(f"the artifact's text files cannot be used: {fault!r}") from fault
            return text

    def _tell(self) -> None:
        self._version += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
