"""Where a loader has its artifacts from, as it was told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.errors import PreconditionFailed
from services.loader.artifact_cache import ArtifactCache
from services.loader.artifacts import Artifacts
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.cache_metrics import CacheMetrics
from services.loader.cached_artifacts import CachedArtifacts
from services.loader.config import LoaderConfig
from services.loader.http_store import HttpStore
from services.loader.store_url import store_url


@contextlib.asynccontextmanager
async def supply(config: LoaderConfig, registry: CollectorRegistry) -> AsyncIterator[Artifacts]:
    """The artifacts of the configured store, for the scope.

    Raises:
        PreconditionFailed: The cache cannot be written, or a file that the configuration names cannot be read.
    """
    directory = config.directory_store
    if directory is not None:
        yield ArtifactsInPlace(directory)
        return
    metrics = CacheMetrics(registry)
    cache = await asyncio.to_thread(_open_cache, config, metrics)
    metrics.export_live(lambda: cache.directory.used_bytes, lambda: cache.most_bytes)
    async with HttpStore(store_url(config.store), config.http_options()) as store:
        yield CachedArtifacts(store, cache, config.store_connections, metrics, config.trust)


def _open_cache(config: LoaderConfig, metrics: CacheMetrics) -> ArtifactCache:
    try:
        directory = CacheDirectory.of(config.cache_dir)
        cache = ArtifactCache(directory, config.cache_max_bytes, metrics)
        cache.sweep()
    except OSError as failure:
        raise PreconditionFailed(
            f"the cache of artifacts cannot be used ({failure.strerror}); give another --cache-dir",
            reason="CACHE_UNUSABLE",
        ) from None
    return cache
