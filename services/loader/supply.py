"""Where a loader has its artifacts from, as it was told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

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
from services.loader.derived_cache import DerivedCache
from services.loader.fallback_artifacts import FallbackArtifacts
from services.loader.fallback_fetches import FallbackFetches
from services.loader.http_store import HttpStore
from services.loader.store_url import store_url

log = structlog.get_logger()


class Supply(NamedTuple):
    """Where a loader has its weights from.

    Attributes:
        artifacts: Of the configured store.
        derived: What was made of them for kernels.
    """

    artifacts: Artifacts
    derived: DerivedCache


class _Caching:
    """The cache that artifacts come through, from wherever they come, and that derived files lie in.

    Args:
        config: Where it lies, and how much it may take.
        registry: Where its metrics are collected.
    """

    def __init__(self, config: LoaderConfig, registry: CollectorRegistry) -> None:
        self._config = config
        self._metrics = CacheMetrics(registry)
        self._opening = threading.Lock()
        self._cache: ArtifactCache | None = None

    def open(self) -> ArtifactCache:
        """Opens it when it is first wanted; in threads. Raises PreconditionFailed where it cannot be used."""
        with self._opening:
            if self._cache is None:
                cache = self._cache = _open_cache(self._config, self._metrics)
                self._metrics.export_live(lambda: cache.directory.used_bytes, lambda: cache.most_bytes)
            return self._cache

    async def of(self, source: HttpStore) -> CachedArtifacts:
        """What comes from there through the cache; raises PreconditionFailed where that cannot be used."""
        cache = await asyncio.to_thread(self.open)
        config = self._config
        return CachedArtifacts(source, cache, config.store_connections, self._metrics, config.trust)


@contextlib.asynccontextmanager
async def supply(config: LoaderConfig, registry: CollectorRegistry) -> AsyncIterator[Supply]:
    """What the configured store has, for the scope.

    Raises:
        PreconditionFailed: The cache cannot be written, or a file that the configuration names cannot be read.
    """
    caching = _Caching(config, registry)
    async with contextlib.AsyncExitStack() as scope:
        store = await _store(scope, config, caching)
        if config.registry.fallback_enabled:
            store = await _with_fallback(scope, store, caching, config)
        yield Supply(store, DerivedCache(caching.open))


async def _store(scope: contextlib.AsyncExitStack, config: LoaderConfig, caching: _Caching) -> Artifacts:
    directory = config.directory_store
    if directory is not None:
        return ArtifactsInPlace(directory)
    await asyncio.to_thread(caching.open)  # says what is wrong with it before anything else does
    source = HttpStore(store_url(config.store), config.http_options())
    return await caching.of(await scope.enter_async_context(source))


async def _with_fallback(
    scope: contextlib.AsyncExitStack, store: Artifacts, caching: _Caching, config: LoaderConfig
) -> Artifacts:
    """The store's, and behind them those of the registry of models; the store's alone where that cannot be."""
    base = config.registry.base.joinpath("artifacts")
    try:
        await asyncio.to_thread(caching.open)
        source = await scope.enter_async_context(HttpStore(base, config.registry_options()))
        fetched = await caching.of(source)
    except PreconditionFailed as failure:
        log.warning("fallback_unusable", reason=failure.reason, error=failure.message)
        return store
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
