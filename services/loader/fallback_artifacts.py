"""Artifacts of a store, and of a registry of models what that has not: fetched in the background, for whoever comes later."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.manifest import ManifestFile
from services.common.errors import CorruptData, NotFound
from services.common.ids import ArtifactId
from services.loader.artifacts import Artifacts, Listener
from services.loader.cached_artifacts import CachedArtifacts
from services.loader.fallback_fetches import FallbackFetches


class FallbackArtifacts:
    """`Artifacts` of the store. What the store has, the registry is never asked for; nobody waits for its answer.

    Args:
        store: Comes first.
        fetched: What the registry had, in the cache.
        fetches: Asks the registry.
    """

    def __init__(self, store: Artifacts, fetched: CachedArtifacts, fetches: FallbackFetches) -> None:
        self._store = store
        self._fetched = fetched
        self._fetches = fetches

    @property
    def is_reachable(self) -> bool:
        return self._store.is_reachable

    @contextlib.asynccontextmanager
    async def opened(self, artifact_id: ArtifactId) -> AsyncIterator[StoredArtifact]:
        """As `Artifacts.opened` says; one that is yet to come is not found."""
        async with contextlib.AsyncExitStack() as scope:
            try:
                stored = await scope.enter_async_context(self._store.opened(artifact_id))
            except NotFound as absent:
                stored = await self._open_fetched(scope, artifact_id, absent)
            yield stored

    async def _open_fetched(
        self, scope: contextlib.AsyncExitStack, artifact_id: ArtifactId, absent: NotFound
    ) -> StoredArtifact:
        try:
            return await scope.enter_async_context(self._fetched.opened_here(artifact_id))
        except NotFound:
            raise self._asking(artifact_id, absent) from None

    async def bring(self, stored: StoredArtifact, file: ManifestFile, listener: Listener) -> None:
        """As `Artifacts.bring` says."""
        try:
            await self._store.bring(stored, file, listener)
        except (
            NotFound
        ) as absent:  # a store that is read through the same cache knows the manifest from there
            raise self._asking(stored.manifest.id, absent) from None

    def _asking(self, artifact_id: ArtifactId, absent: NotFound) -> NotFound:
        self._fetches.ask(artifact_id)
        message = f"{absent.message}; the registry is asked for it, so it may be here when you try again"
        return NotFound(message, reason=absent.reason, metadata=absent.metadata)

    async def signatures(self, stored: StoredArtifact) -> bytes:
        """As `Artifacts.signatures` says."""
        return await self._store.signatures(stored)

    async def mend(self, artifact_id: ArtifactId, fault: CorruptData) -> bool:
        """As `Artifacts.mend` says."""
        return await self._store.mend(artifact_id, fault) or await self._fetched.mend(artifact_id, fault)
