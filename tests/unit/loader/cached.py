"""Artifacts of an HTTP store and their cache, as tests open them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from yarl import URL

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.signatures import ANYBODY, TrustedKeys
from services.common.ids import ArtifactId
from services.loader.artifact_cache import ArtifactCache
from services.loader.artifacts import Artifacts
from services.loader.cache_metrics import CacheMetrics
from services.loader.cached_artifacts import CachedArtifacts
from services.loader.http_store import HttpOptions, HttpStore

QUICK = HttpOptions(timeout_s=60, tries=3, first_pause_s=0.001, most_pause_s=0.002)


class Heard:
    """A listener that adds up."""

    def __init__(self) -> None:
        self.expected_bytes = self.done_bytes = 0

    def expect(self, by_bytes: int) -> None:
        self.expected_bytes += by_bytes

    def advance(self, by_bytes: int) -> None:
        assert by_bytes >= 0
        self.done_bytes += by_bytes


@contextlib.asynccontextmanager
async def open_cached(
    url: str,
    cache_dir: Path,
    *,
    connections: int = 2,
    max_bytes: int | None = None,
    options: HttpOptions = QUICK,
    registry: CollectorRegistry | None = None,
    trust: TrustedKeys = ANYBODY,
) -> AsyncIterator[CachedArtifacts]:
    metrics = CacheMetrics(registry or CollectorRegistry())
    cache = ArtifactCache(CacheDirectory.of(cache_dir), max_bytes, metrics)
    cache.sweep()
    async with HttpStore(URL(url), options) as store:
        yield CachedArtifacts(store, cache, connections, metrics, trust)


async def bring_all(
    artifacts: Artifacts, artifact_id: ArtifactId, heard: Heard | None = None
) -> dict[str, bytes]:
    """Every file's content, by its name."""
    heard = heard or Heard()
    async with artifacts.opened(artifact_id) as stored:
        for file in (*stored.manifest.small_files, stored.manifest.weights):
            await artifacts.bring(stored, file, heard)
        return {file.path: stored.path(file).read_bytes() for file in stored.manifest.files}


def content_of(stored: StoredArtifact) -> dict[str, bytes]:
    """The same, as it lies in a store."""
    return {file.path: stored.path(file).read_bytes() for file in stored.manifest.files}


def files_in(cache_dir: Path) -> set[str]:
    """Names of what lies under its digest, finished or not."""
    return {path.name for path in (cache_dir / "artifacts" / "files").iterdir()}
