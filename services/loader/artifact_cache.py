"""The room in a cache of artifacts: how much there is, and who has to go for more."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from typing import Final

import structlog

from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.cache_entry import CacheEntry, plan_eviction, total_bytes
from services.common.checkpoint.manifest import ManifestFile
from services.common.checkpoint.partial_file import PartialFile
from services.common.errors import Overloaded
from services.loader.cache_metrics import CacheMetrics
from services.loader.cache_shortage import Shortage, bound_bytes
from services.loader.turn import turn_if_free

PARTIAL_KEEP_S: Final = 24 * 3600.0  # a file that nobody went on with for so long will not be asked for again

log = structlog.get_logger()


class ArtifactCache:
    """Decides what is evicted from `directory`; used in threads.

    Args:
        directory: The cache, shared with the other loaders of this host.
        asked_bytes: The most that it may take; None for nine tenths of what it takes and the disk has free.
        metrics: Told of evictions.
    """

    def __init__(self, directory: CacheDirectory, asked_bytes: int | None, metrics: CacheMetrics) -> None:
        self.directory = directory
        self._asked_bytes = asked_bytes
        self._metrics = metrics

    @property
    def most_bytes(self) -> int:
        """What it may take, as things stand."""
        return bound_bytes(self._asked_bytes, self.directory.used_bytes, self.directory.free_bytes)

    def sweep(self) -> None:
        """Removes what dead loaders left and nobody will go on with, and what is over the bound by now."""
        for path in self.directory.turn_paths:
            with turn_if_free(path):  # its end takes the pipe away
                pass
        for name in self.directory.sweep(time.time() - PARTIAL_KEEP_S):
            log.info("cache_leftover_swept", file=name)
        try:
            self.directory.trim(self._choose)
        except Overloaded as full:
            log.warning("cache_over_its_bound", error=full.message)
        log.info("cache_opened", used_bytes=self.directory.used_bytes, most_bytes=self.most_bytes)

    def reserve(self, file: ManifestFile) -> PartialFile:
        """Room for a file whose turn the caller has; evicts for it.

        Raises:
            Overloaded: There is none, or none that may be freed; the message has the arithmetic.
        """
        with self._telling_full(file.size_bytes):
            return self.directory.reserve(file, self._choose)

    def reserve_derived(self, name: str, size_bytes: int) -> PartialFile:
        """The same for a derived file of that name."""
        with self._telling_full(size_bytes):
            return self.directory.reserve_derived(name, size_bytes, self._choose)

    @contextlib.contextmanager
    def _telling_full(self, size_bytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            if failure.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise self._full(size_bytes, self.directory.entries()) from None

    def _choose(self, entries: tuple[CacheEntry, ...], needed_bytes: int) -> tuple[CacheEntry, ...]:
        used_bytes, free_bytes = total_bytes(entries), self.directory.free_bytes
        over_bytes = used_bytes + needed_bytes - bound_bytes(self._asked_bytes, used_bytes, free_bytes)
        excess_bytes = max(over_bytes, needed_bytes - free_bytes)
        plan = plan_eviction(entries, excess_bytes)
        if plan.freed_bytes < excess_bytes:
            raise self._full(needed_bytes, entries)
        for victim in plan.victims:
            self._metrics.evicted()
            log.info(
                "cache_evicted", name=victim.name, size_bytes=victim.size_bytes, used_at_s=victim.used_at_s
            )
        return plan.victims

    def _full(self, needed_bytes: int, entries: tuple[CacheEntry, ...]) -> Overloaded:
        shortage = Shortage.of(entries, needed_bytes, self.directory.free_bytes, self._asked_bytes)
        return Overloaded(
            shortage.text,
            reason="CACHE_FULL",
            metadata={"needed_bytes": str(needed_bytes), "free_bytes": str(shortage.free_bytes)},
            retry_after_s=10.0,
        )
