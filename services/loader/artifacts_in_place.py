"""Artifacts of a directory, read where they lie."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.manifest import ManifestFile
from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.loader.artifacts import Listener


class ArtifactsInPlace:
    """`Artifacts` of which nothing is ever brought: whoever reads a file finds out whether it is there."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    @property
    def is_reachable(self) -> bool:
        return self._store.is_reachable

    @contextlib.asynccontextmanager
    async def opened(self, artifact_id: ArtifactId) -> AsyncIterator[StoredArtifact]:
        """As `Artifacts.opened` says."""
        yield await asyncio.to_thread(self._store.open, artifact_id)

    async def bring(self, _stored: StoredArtifact, _file: ManifestFile, _listener: Listener) -> None:
        return

    async def signatures(self, stored: StoredArtifact) -> bytes:
        """As `Artifacts.signatures` says."""
        return await asyncio.to_thread(lambda: stored.signatures)

    async def mend(self, _artifact_id: ArtifactId, _fault: CorruptData) -> bool:
        return False  # what is wrong there is wrong for everybody
