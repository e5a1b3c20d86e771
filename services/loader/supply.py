"""Where a loader has its artifacts from, as it was told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from prometheus_client import CollectorRegistry

from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.errors import PreconditionFailed
from services.loader.artifact_cache import ArtifactCache
from services.loader.artifacts import Artifacts
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.cache_metrics import CacheMetrics
from services.loader.cached_artifacts import CachedArtifacts
from services.loader.config import LoaderConfig
from services.loader.fallback_artifacts import FallbackArtifacts
from services.loader.fallback_fetches import FallbackFetches
from services.loader.http_store import HttpStore
from services.loader.store_url import store_url


@contextlib.asynccontextmanager
async def supply(config: LoaderConfig, registry: CollectorRegistry) -> AsyncIterator[Artifacts]:
    """The artifacts of the configured store, for the scope.

    Raises:
        PreconditionFailed: The cache cannot be written, or a file that the configuration names cannot be read.
    """
    directory = config.directory_store
    if directory is not None and not config.registry.fallback_enabled:
        yield ArtifactsInPlace(directory)
        return
    metrics = CacheMetrics(registry)
    cache = await asyncio.to_thread(_open_cache, config, metrics)
    metrics.export_live(lambda: cache.directory.used_bytes, lambda: cache.most_bytes)

    def cached(source: HttpStore) -> CachedArtifacts:
        return CachedArtifacts(source, cache, config.store_connections, metrics, config.trust)

    async with contextlib.AsyncExitStack() as scope:
        store: Artifacts
        if directory is not None:
            store = ArtifactsInPlace(directory)
        else:
            store = cached(
                await scope.enter_async_context(HttpStore(store_url(config.store), config.http_options()))
            )
        if config.registry.fallback_enabled:
            store = await scope.enter_async_context(_with_fallback(store, cached, config))
        yield store


@contextlib.asynccontextmanager
async def _with_fallback(
    store: Artifacts, cached: Callable[[HttpStore], CachedArtifacts], config: LoaderConfig
) -> AsyncIterator[Artifacts]:
    """The store's, with the registry of models asked for what it has not."""
    base = config.registry.base.joinpath("artifacts")
    async with HttpStore(base, config.registry_options()) as source:
        registry = cached(source)
        async with FallbackFetches(registry, config.registry.fallback_limit_s) as fetches:
            yield FallbackArtifacts(store, registry, fetches)


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
