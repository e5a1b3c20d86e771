"""What a loader with a cache of artifacts tells Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.common.metrics import PREFIX, REQUEST_S, LiveMetrics


class CacheMetrics:
    """Counts what is found in the cache and what is fetched.

    Args:
        registry: Where it is collected.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._found = Counter(
            PREFIX + "cache_hits", "Files of artifacts that were in the cache.", registry=registry
        )
        self._missed = Counter(
            PREFIX + "cache_misses", "Files of artifacts that had to be fetched.", registry=registry
        )
        self._evicted = Counter(
            PREFIX + "cache_evictions",
            "Artifacts, and files half fetched, evicted for others.",
            registry=registry,
        )
        self._fetched = Counter(
            PREFIX + "fetched_bytes", "Bytes that came from the artifact store over HTTP.", registry=registry
        )
        self._seconds = Histogram(
            PREFIX + "fetch_seconds",
            "Seconds that it took to fetch a file, whether it came or not.",
            buckets=(0.01, 0.1, *REQUEST_S),
            registry=registry,
        )

    @contextlib.contextmanager
    def fetch(self) -> Iterator[None]:
        """Measures how long it takes to fetch one file, whether it comes or not."""
        from_s = time.monotonic()
        try:
            yield
        finally:
            self._seconds.observe(time.monotonic() - from_s)

    def looked_up(self, *, found: bool) -> None:
        (self._found if found else self._missed).inc()

    def evicted(self) -> None:
        self._evicted.inc()

    def fetched(self, by_bytes: int) -> None:
        self._fetched.inc(by_bytes)

    def export_live(self, used_bytes: Callable[[], float], most_bytes: Callable[[], float]) -> None:
        """Adds how full it is; both are read at every scrape."""
        live = LiveMetrics(self._registry)
        live.gauge("cache_bytes", "Bytes that the artifact cache takes.", used_bytes)
        live.gauge("cache_max_bytes", "Bytes that the artifact cache may take.", most_bytes)
