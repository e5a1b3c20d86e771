"""Where a loader has its artifacts from, as it was told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple, Self

import structlog
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

log = structlog.get_logger()


class _Caching(NamedTuple):
    """The cache that artifacts come through, from wherever they come."""

    config: LoaderConfig
    cache: ArtifactCache
    metrics: CacheMetrics

    @classmethod
    async def open(cls, config: LoaderConfig, registry: CollectorRegistry) -> Self:
        """Raises PreconditionFailed where it cannot be used."""
        metrics = CacheMetrics(registry)
        cache = await asyncio.to_thread(_open_cache, config, metrics)
        metrics.export_live(lambda: cache.directory.used_bytes, lambda: cache.most_bytes)
        return cls(config, cache, metrics)

    def of(self, source: HttpStore) -> CachedArtifacts:
        return CachedArtifacts(
            source, self.cache, self.config.store_connections, self.metrics, self.config.trust
        )


@contextlib.asynccontextmanager
async def supply(config: LoaderConfig, registry: CollectorRegistry) -> AsyncIterator[Artifacts]:
    """The artifacts of the configured store, for the scope.

    Raises:
        PreconditionFailed: The cache cannot be written, or a file that the configuration names cannot be read.
    """
    async with contextlib.AsyncExitStack() as scope:
        store, caching = await _store(scope, config, registry)
        if config.registry.fallback_enabled:
            store = await _with_fallback(scope, store, caching, registry, config)
        yield store


async def _store(
    scope: contextlib.AsyncExitStack, config: LoaderConfig, registry: CollectorRegistry
) -> tuple[Artifacts, _Caching | None]:
    """The store's, and the cache where they come through it."""
    directory = config.directory_store
    if directory is not None:
        return ArtifactsInPlace(directory), None
    caching = await _Caching.open(config, registry)
    source = HttpStore(store_url(config.store), config.http_options())
    return caching.of(await scope.enter_async_context(source)), caching


async def _with_fallback(
    scope: contextlib.AsyncExitStack,
    store: Artifacts,
    caching: _Caching | None,
    registry: CollectorRegistry,
    config: LoaderConfig,
) -> Artifacts:
    """The store's, and behind them those of the registry of models; the store's alone where that cannot be."""
    base = config.registry.base.joinpath("artifacts")
    try:
        caching = caching or await _Caching.open(config, registry)
        source = await scope.enter_async_context(HttpStore(base, config.registry_options()))
    except PreconditionFailed as failure:
        log.warning("fallback_unusable", reason=failure.reason, error=failure.message)
        return store
    fetched = caching.of(source)
    fetches = FallbackFetches(fetched, config.registry.fallback_limit_s)
    return FallbackArtifacts(store, fetched, await scope.enter_async_context(fetches))


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
