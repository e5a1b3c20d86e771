"""The way of an artifact into memory in a kernel's layout: adopted, read from the cache's disk, or packed there first.

Only what was packed is brought into memory, never the file that it is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.derived_files import derived_name
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.checkpoint.packed_file import PackedFile, expected_header
from services.common.checkpoint.partial_file import PartialFile
from services.common.errors import CorruptData, Overloaded, PreconditionFailed, Unsupported
from services.common.ids import ArtifactId
from services.common.stoppable import in_thread, run_stoppable
from services.common.telemetry.tracing import span
from services.loader.adoption import Adopted, check_layout
from services.loader.arrivals import Arrivals, Job, Verified, attributes
from services.loader.derived_cache import DerivedCache, FoundDerived
from services.loader.file_stamp import FileStamp
from services.loader.flight import Flight
from services.loader.intake import FileWanted, Intake, Progress
from services.loader.metrics import Stage
from services.loader.residents import Prepared
from services.loader.verified_lately import VerifiedLately
from services.loader.weight_file import ReadMode
from services.loader.weight_packing import WeightPacking


class NotDerived(Exception):
    """There is no such file and none can be made; the weights can be had as they are stored."""


class _Derived(NamedTuple):
    """A derived file that is wanted.

    Attributes:
        expected: The header that it must have, but for its digests.
    """

    stored: StoredArtifact
    layout: KernelLayout
    expected: Header

    @classmethod
    def of(cls, stored: StoredArtifact, layout: KernelLayout) -> _Derived:
        """Raises NotDerived where weights have no such layout."""
        try:
            return cls(stored, layout, expected_header(stored.manifest, layout))
        except Unsupported as why:
            raise NotDerived(why.message) from None

    @property
    def file(self) -> FileWanted:
        artifact_id = self.stored.manifest.id
        return FileWanted(artifact_id, derived_name(artifact_id, self.layout))

    def check(self, found: Header) -> None:
        check_layout(found, self.expected)

    def prepared(self, adopted: Adopted) -> Prepared:
        return Prepared(
            artifact_id=self.stored.manifest.id,
            part=str(self.layout),
            path=self.stored.manifest.weights.path,
            identity=adopted.header.identity,
            holding=adopted.holding,
            huge_pages=adopted.huge_pages,
            layout=self.layout,
        )


class DerivedLoads:
    """Loads derived files.

    Args:
        arrivals: Where artifacts come from.
        intake: Has disk, room and turns, which whole artifacts share.
        cache: Where derived files lie.
        lately: Told of the weights that were verified while they were packed.
    """

    def __init__(
        self, arrivals: Arrivals, intake: Intake, cache: DerivedCache, lately: VerifiedLately
    ) -> None:
        self._lately = lately
        self._arrivals = arrivals
        self._intake = intake
        self._cache = cache

    async def load(self, artifact_id: ArtifactId, layout: KernelLayout, flight: Flight[Any]) -> Prepared:
        """Loads an artifact in that layout, and tells how far it is.

        Raises:
            NotDerived: It cannot be had in that layout.
            HalogenError: As `Loads.load` raises.
        """
        if self._intake.reading.asked is ReadMode.MMAP:
            raise NotDerived("this loader leaves weights where they lie (--read-mode mmap)")
        job = Job(
            work=lambda verified: self._load(verified, layout, flight),
            foresee=lambda stored: self._foresee(_Derived.of(stored, layout)),
            find=lambda stored: self._find(_Derived.of(stored, layout), flight),
        )
        return await self._arrivals.use(artifact_id, flight, job)

    async def _foresee(self, derived: _Derived) -> None:
        """Refuses what memory would be short for."""
        if not self._intake.commons.has(derived.file.name):
            await self._intake.room.check_memory(derived.expected.file_bytes)

    async def _find(self, derived: _Derived, flight: Flight[Any]) -> Prepared | None:
        """What lies in memory or on the cache's disk, or is on its way there."""
        saved_bytes = derived.stored.manifest.weights.size_bytes
        flight.expect(derived.expected.file_bytes - saved_bytes)
        async with self._intake.turn(derived.file.name), self._intake.disk:
            found = await self._adopt(derived, flight) or await self._read(derived, flight)
        if found is None:
            flight.expect(saved_bytes)
        return found

    async def _load(self, verified: Verified, layout: KernelLayout, flight: Flight[Any]) -> Prepared:
        derived = _Derived.of(verified.stored, layout)
        async with self._intake.turn(derived.file.name), self._intake.disk:
            found = await self._adopt(derived, flight)
            if found is None:
                await self._derive(derived, verified.header, flight)
                found = await self._read(derived, flight)
        if found is None:
            raise NotDerived("it was not read as it was written; look at the disk of --cache-dir")
        return found

    async def _adopt(self, derived: _Derived, flight: Flight[Any]) -> Prepared | None:
        adopted = await self._intake.adopt(derived.file, derived.check, flight)
        return derived.prepared(adopted) if adopted else None

    async def _read(self, derived: _Derived, flight: Flight[Any]) -> Prepared | None:
        """The file from the cache's disk, if it is there; one that is not what it should be goes."""
        name = derived.file.name
        with _not_derived_if_the_cache_fails():
            found = await run_stoppable(lambda _: self._cache.find(name, derived.expected), _release)
        if found is None:
            return None
        try:
            return derived.prepared(
                await self._intake.read(derived.file, found.held.path, found.header, flight)
            )
        except CorruptData as fault:
            await in_thread(functools.partial(self._cache.forget, name, fault))
            return None
        finally:
            found.release()

    async def _derive(self, derived: _Derived, whole: Header, flight: Flight[Any]) -> None:
        """Makes the file on the cache's disk, unless another loader has made it meanwhile."""
        name = derived.file.name
        with _not_derived_if_the_cache_fails():
            async with self._cache.turn(name):
                if await asyncio.to_thread(self._cache.has, name):
                    return
                partial = await run_stoppable(
                    lambda _: self._cache.reserve(name, derived.expected.file_bytes), PartialFile.close
                )
                try:
                    await self._pack(derived, whole, partial, flight)
                    await in_thread(lambda: self._cache.publish(partial, name))
                finally:
                    partial.discard()

    async def _pack(
        self, derived: _Derived, whole: Header, partial: PartialFile, flight: Flight[Any]
    ) -> None:
        try:
            file = await asyncio.to_thread(PackedFile.plan, whole)
        except Unsupported as why:
            raise NotDerived(why.message) from None
        stored = derived.stored
        path = stored.path(stored.manifest.weights)
        before = await asyncio.to_thread(FileStamp.of, path)
        packing = WeightPacking(path, whole, file, partial)

        def work(progress: Progress, stop: threading.Event) -> None:
            packing.run(self._intake.reading, progress, stop)

        with self._intake.metrics.stage(Stage.DERIVE), span("derive", attributes(stored)):
            await self._intake.run(work, flight, lambda _: None)
        self._lately.add(path, before)


def _release(found: FoundDerived | None) -> None:
    if found is not None:
        found.release()


@contextlib.contextmanager
def _not_derived_if_the_cache_fails() -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise NotDerived(f"the disk of --cache-dir: {failure.strerror}") from failure
    except (Overloaded, PreconditionFailed) as failure:
        raise NotDerived(failure.message) from failure
