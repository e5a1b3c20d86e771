"""Artifacts of a store that is read over HTTP, through a cache on this host's disk: each file comes here once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import structlog

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.held_artifact import HeldArtifact
from services.common.checkpoint.manifest import ManifestFile, Role
from services.common.checkpoint.partial_file import PartialFile
from services.common.checkpoint.signatures import ANYBODY, TrustedKeys
from services.common.checkpoint.verified_artifact import verify_small
from services.common.errors import CorruptData, InvalidRequest, NotFound, PreconditionFailed
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId
from services.common.stoppable import in_thread, run_stoppable
from services.common.telemetry.attributes import ARTIFACT_ID, SIZE_BYTES
from services.common.telemetry.tracing import span
from services.loader.artifact_cache import ArtifactCache
from services.loader.artifacts import Listener
from services.loader.cache_metrics import CacheMetrics
from services.loader.fetch import Fetch
from services.loader.http_file import OtherVersion
from services.loader.http_store import HttpStore
from services.loader.small_download import download_small
from services.loader.turn import turn
from services.loader.weights_download import download_weights

VERSIONS: Final = 4  # of one file, one after the other, are too many

log = structlog.get_logger()


class CachedArtifacts:
    """`Artifacts` that are fetched when they are not here. What is here needs no store.

    Args:
        store: Where they come from, open.
        cache: Where they lie.
        connections: Requests at a time for one file of weights.
        metrics: Told of hits, misses and bytes.
        trust: Whose signatures are looked for in the store when those that are here do not do.
    """

    def __init__(
        self,
        store: HttpStore,
        cache: ArtifactCache,
        connections: int,
        metrics: CacheMetrics,
        trust: TrustedKeys = ANYBODY,
    ) -> None:
        self._store = store
        self._cache = cache
        self._directory = cache.directory
        self._connections = connections
        self._metrics = metrics
        self._trust = trust

    @property
    def is_reachable(self) -> bool:
        """A store that is gone keeps nobody from what is here."""
        return self._directory.root.is_dir()

    @contextlib.asynccontextmanager
    async def opened(self, artifact_id: ArtifactId) -> AsyncIterator[StoredArtifact]:
        """As `Artifacts.opened` says; it is not evicted meanwhile."""
        if not ARTIFACT_ID_PATTERN.fullmatch(artifact_id):
            raise InvalidRequest("an artifact id has 64 lower-case hexadecimal digits")
        held = await self._hold(artifact_id)
        try:
            if not self._trust.accepts(artifact_id, held.stored.signatures):
                await self._bring_signatures(held.stored)
            yield held.stored
        finally:
            held.release()

    async def _hold(self, artifact_id: ArtifactId) -> HeldArtifact:
        held = await self._held(artifact_id)
        if held is not None:
            return held
        manifest = await self._store.manifest(artifact_id)
        return await run_stoppable(lambda _: self._directory.admit(manifest), _release)

    async def _held(self, artifact_id: ArtifactId) -> HeldArtifact | None:
        """The artifact if its manifest is here."""
        return await run_stoppable(lambda _: self._directory.hold(artifact_id), _release)

    @contextlib.asynccontextmanager
    async def opened_here(self, artifact_id: ArtifactId) -> AsyncIterator[StoredArtifact]:
        """An artifact of which all files are here, for the scope; the store is not asked.

        Raises:
            NotFound: They are not.
        """
        held = await self._held(artifact_id)
        try:
            if held is None or not await in_thread(lambda: self._is_whole(held.stored)):
                raise NotFound("the cache has not all of that artifact", reason="NOT_IN_CACHE")
            yield held.stored
        finally:
            _release(held)

    def _is_whole(self, stored: StoredArtifact) -> bool:
        return all(self._directory.has(stored, file) for file in stored.manifest.files)

    async def bring(self, stored: StoredArtifact, file: ManifestFile, listener: Listener) -> None:
        """As `Artifacts.bring` says; if others are bringing the file, waits for them."""
        async with turn(self._directory.turn_path(file.sha256)):
            found = await in_thread(lambda: self._find(stored, file))
            self._metrics.looked_up(found=found)
            if not found:
                told: dict[str, str | int] = {ARTIFACT_ID: stored.manifest.id, SIZE_BYTES: file.size_bytes}
                with self._metrics.fetch(), span("download", told):
                    await self._fetch(stored, file, listener)

    def _find(self, stored: StoredArtifact, file: ManifestFile) -> bool:
        """Whether the file is here; a small one is verified, weights are by whoever reads them."""
        if not self._directory.has(stored, file):
            return False
        if file.role is Role.WEIGHTS:
            return True
        try:
            verify_small(stored.path(file).read_bytes(), file)
        except CorruptData:
            log.warning("cached_file_wrong", file=file.path, artifact_id=stored.manifest.id)
            self._directory.forget(file)
            return False
        return True

    async def _fetch(self, stored: StoredArtifact, file: ManifestFile, listener: Listener) -> None:
        partial = await run_stoppable(lambda _: self._cache.reserve(file), PartialFile.close)
        try:
            listener.expect(file.size_bytes)
            await self._fill_from_any(stored, file, partial, listener)
            await in_thread(lambda: self._directory.publish(partial, stored, file))
        finally:
            partial.close()
        log.info("file_fetched", artifact_id=stored.manifest.id, file=file.path, size_bytes=file.size_bytes)

    async def _fill_from_any(
        self, stored: StoredArtifact, file: ManifestFile, partial: PartialFile, listener: Listener
    ) -> None:
        """Goes on with the version that the store has by now, whichever: what is verified is right, and is kept.

        Raises:
            PreconditionFailed: It comes to no end, as where replicas disagree.
        """
        pause = self._store.backoff()
        for _ in range(VERSIONS):
            retold = _Retold(listener)
            try:
                return await self._fill(stored, file, partial, retold)
            except OtherVersion as other:
                log.warning("source_changed", file=file.path, versions=str(other))
            retold.take_back()
            await pause.pause()
        raise PreconditionFailed(
            f"{file.path} comes from the store in other versions again and again: let nobody write it, and all servers "
            "behind --store name the same ETag (or Last-Modified) for it, or give --store a single one; then publish again",
            reason="SOURCE_CHANGED",
        )

    async def _fill(
        self, stored: StoredArtifact, file: ManifestFile, partial: PartialFile, listener: Listener
    ) -> None:
        fetch = Fetch(
            remote=self._store.file(stored.manifest.id, file),
            partial=partial,
            connections=self._connections,
            patience=self._store.patience,
            arrived=self._metrics.fetched,
            progress=listener.advance,
        )
        if file.role is Role.WEIGHTS:
            await download_weights(stored.manifest, fetch)
        else:
            await download_small(file, fetch)

    async def signatures(self, stored: StoredArtifact) -> bytes:
        """As `Artifacts.signatures` says; the store is asked when there are none here."""
        if not stored.signatures:
            await self._bring_signatures(stored)
        return stored.signatures

    async def _bring_signatures(self, stored: StoredArtifact) -> None:
        """Takes the store's; what is here stays where the store has none."""
        with contextlib.suppress(NotFound):
            content = await self._store.signatures(stored.manifest.id)
            await in_thread(lambda: stored.write_signatures(content))

    async def mend(self, artifact_id: ArtifactId, fault: CorruptData) -> bool:
        """As `Artifacts.mend` says: the disk may have spoilt what was verified when it came."""
        held = await self._held(artifact_id)
        if held is None:
            return False
        try:
            file = held.stored.manifest.file(fault.metadata.get("file", ""))
            return file is not None and await in_thread(lambda: self._directory.forget(file))
        finally:
            held.release()


class _Retold:
    """A listener whose bytes are to come once more if it comes to nothing."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._done_bytes = 0

    def expect(self, by_bytes: int) -> None:
        self._listener.expect(by_bytes)

    def advance(self, by_bytes: int) -> None:
        self._done_bytes += by_bytes
        self._listener.advance(by_bytes)

    def take_back(self) -> None:
        self._listener.expect(self._done_bytes)


def _release(held: HeldArtifact | None) -> None:
    if held is not None:
        held.release()
