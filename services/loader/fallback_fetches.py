"""Artifacts that a registry of models is asked for: one at a time, in the background, each try with an end."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

import structlog

from services.common.background import background
from services.common.errors import HalogenError
from services.common.ids import ArtifactId
from services.loader.artifacts import NOBODY, Artifacts

MAX_WAITING: Final = 16  # artifacts; more are asked for when somebody wants them again
PAUSE_S: Final = 10.0  # after a try that came to nothing

log = structlog.get_logger()


class FallbackFetches:
    """Brings artifacts here that somebody asked for; a scope.

    Args:
        registry: Where they come from.
        limit_s: Seconds after which one is given up.
        pause_s: Seconds for which one that did not come is not asked for again.
    """

    def __init__(self, registry: Artifacts, limit_s: float, pause_s: float = PAUSE_S) -> None:
        self._registry = registry
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._waiting: asyncio.Queue[ArtifactId] = asyncio.Queue(MAX_WAITING)
        self._asked: set[ArtifactId] = set()  # those that wait, and the one under way
        self._not_before_s: dict[ArtifactId, float] = {}
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._scope.enter_async_context(background(self._work()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, value, trace)

    def ask(self, artifact_id: ArtifactId) -> None:
        """Asks for an artifact, unless that is under way, was in vain a moment ago, or too many wait; at once."""
        now_s = asyncio.get_running_loop().time()
        is_early = now_s < self._not_before_s.get(artifact_id, 0.0)
        if artifact_id in self._asked or is_early or self._waiting.full():
            return
        self._asked.add(artifact_id)
        self._waiting.put_nowait(artifact_id)

    async def _work(self) -> None:
        while True:
            artifact_id = await self._waiting.get()
            try:
                await self._try(artifact_id)
            finally:
                self._asked.discard(artifact_id)
                self._waiting.task_done()

    async def _try(self, artifact_id: ArtifactId) -> None:
        log.info("fallback_begun", artifact_id=artifact_id)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._fetch(artifact_id)
        except HalogenError as failure:
            self._failed(artifact_id, failure.reason, failure.message)
        except TimeoutError:
            self._failed(artifact_id, "FALLBACK_LIMIT", f"not here after {self._limit_s:g} s")
        except Exception:  # nobody waits for it, so nobody is to be hurt by it
            log.exception("fallback_broken", artifact_id=artifact_id)
            self._failed(artifact_id, "INTERNAL", "an unexpected failure")
        else:
            log.info("fallback_fetched", artifact_id=artifact_id)

    async def _fetch(self, artifact_id: ArtifactId) -> None:
        async with self._registry.opened(artifact_id) as stored:
            await self._registry.signatures(stored)
            for file in (*stored.manifest.small_files, stored.manifest.weights):
                await self._registry.bring(stored, file, NOBODY)

    def _failed(self, artifact_id: ArtifactId, reason: str, error: str) -> None:
        now_s = asyncio.get_running_loop().time()
        later = {each: until_s for each, until_s in self._not_before_s.items() if until_s > now_s}
        self._not_before_s = {**later, artifact_id: now_s + self._pause_s}
        log.warning("fallback_failed", artifact_id=artifact_id, reason=reason, error=error)
