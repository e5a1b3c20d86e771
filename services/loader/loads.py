"""The way of an artifact into memory: verified, its turn awaited, what is there adopted, else placed and read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.verified_artifact import check_header
from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.common.stoppable import run_stoppable
from services.common.telemetry.tracing import span
from services.loader.adoption import Adoption
from services.loader.arrivals import Arrivals, Job, Verified
from services.loader.commons import Commons
from services.loader.flight import Flight
from services.loader.in_place import InPlace
from services.loader.metrics import LoaderMetrics, Stage
from services.loader.place import Holding
from services.loader.reading import MAPPED, HowRead, Reading, ReadReport
from services.loader.residents import Prepared
from services.loader.room import Room
from services.loader.weight_file import ReadMode
from services.loader.weight_load import WeightLoad

R = TypeVar("R")
Progress = Callable[[int], None]

IN_PLACE: Final = "file, the store's own"

log = structlog.get_logger(component="checkpoint")


class Loads:
    """Loads artifacts; one read at a time.

    Args:
        arrivals: Where they come from.
        commons: What other loaders of this host have made.
        room: Where weights go.
        reading: How they are read.
        metrics: Told of every stage.
    """

    def __init__(
        self, arrivals: Arrivals, commons: Commons, room: Room, reading: Reading, metrics: LoaderMetrics
    ) -> None:
        self.arrivals = arrivals
        self._commons = commons
        self._room = room
        self._reading = reading
        self._metrics = metrics
        self.disk = asyncio.Lock()  # two reads at a time would only slow each other down
        self.report = ReadReport()

    @property
    def placement(self) -> str:
        """Where weights last went and why, for people."""
        return IN_PLACE if self._reading.asked is ReadMode.MMAP else self._room.placement

    async def load(self, artifact_id: ArtifactId, flight: Flight[Any]) -> Prepared:
        """Loads one artifact, and tells how far it is.

        Raises:
            NotFound: The store does not have it.
            CorruptData: A byte of it is wrong; nothing of it is kept.
            PreconditionFailed: It is not for this host; nothing but its manifest was read.
            Overloaded: There is no room for it.
            Unavailable: The store is not there.
        """
        job = Job(
            work=lambda verified: self._load(verified, flight),
            foresee=self._foresee,
            find=lambda stored: self._find(stored, flight),
        )
        return await self.arrivals.use(artifact_id, flight, job)

    async def check(self, artifact_id: ArtifactId, flight: Flight[Any]) -> None:
        """Verifies one artifact where it lies, keeps nothing in memory, and tells how far it is.

        Raises:
            HalogenError: As `load` does, but for want of room.
        """

        async def work(verified: Verified) -> Holding:
            async with self.disk:
                return await self._verify_in_place(verified, flight)

        await self.arrivals.use(artifact_id, flight, Job(work=work))

    async def _foresee(self, stored: StoredArtifact) -> None:
        """Refuses what memory would be short for; what lies there already, and what stays on the disk, takes none."""
        if self._reading.asked is not ReadMode.MMAP and not self._commons.has(stored.manifest.id):
            await self._room.check_memory(stored.manifest.weights.size_bytes)

    async def _find(self, stored: StoredArtifact, flight: Flight[Any]) -> Prepared | None:
        """What lies in memory, or is on its way there."""
        artifact_id = stored.manifest.id
        if self._reading.asked is ReadMode.MMAP or not self._commons.has(artifact_id):
            return None
        async with self._commons.turn(artifact_id), self.disk:
            return await self._adopt(stored, flight)

    async def _load(self, verified: Verified, flight: Flight[Any]) -> Prepared:
        if self._reading.asked is ReadMode.MMAP:
            async with self.disk:
                return await self._leave_in_place(verified, flight)
        async with self._commons.turn(verified.artifact_id), self.disk:
            return await self._adopt(verified.stored, flight) or await self._read(verified, flight)

    async def _adopt(self, stored: StoredArtifact, flight: Flight[Any]) -> Prepared | None:
        """The file that is there already, if it is sound; one that is not loses its name. Needs the turn."""
        manifest = stored.manifest
        holding = self._commons.find(manifest.id)
        if holding is None:
            return None
        told = {"artifact_id": manifest.id, "place": holding.kind}
        adoption, threads = Adoption(holding, lambda it: check_header(it, manifest)), self._reading.threads
        try:
            with self._metrics.stage(Stage.ADOPT):
                adopted = await run_stoppable(
                    lambda stop: adoption.run(threads, stop), lambda adopted: adopted.holding.let_go()
                )
        except CorruptData as fault:
            log.warning("adoption_refused", error=str(fault), **told)
            self._commons.condemn(holding)
            return None
        log.info("checkpoint_adopted", **told)
        flight.advance(adopted.header.file_bytes)
        return Verified(stored, adopted.header).prepared(adopted.holding, huge_pages=adopted.huge_pages)

    async def _read(self, verified: Verified, flight: Flight[Any]) -> Prepared:
        self._log_start(verified)
        with self._metrics.stage(Stage.PLACE):
            reservation = await self._room.reserve(verified.artifact_id, verified.header.file_bytes)
        load = WeightLoad(verified.stored, verified.header, reservation)

        def work(progress: Progress, stop: threading.Event) -> tuple[Holding, HowRead]:
            return load.run(self._reading, progress, stop)

        with self._metrics.stage(Stage.FETCH), span("read", verified.attributes):
            holding, how = await self.run(work, flight, lambda made: made[0].release())
        self.report.tell(how, self._reading.pace.manners)
        return verified.prepared(holding, huge_pages=reservation.huge_pages)

    async def _leave_in_place(self, verified: Verified, flight: Flight[Any]) -> Prepared:
        holding = await self._verify_in_place(verified, flight)
        self.report.tell(MAPPED, self._reading.pace.manners)
        lazy_bytes = int(verified.header.file_bytes * self._reading.lazy_share)
        return verified.prepared(holding, huge_pages=False, lazy_bytes=lazy_bytes)

    async def _verify_in_place(self, verified: Verified, flight: Flight[Any]) -> Holding:
        self._log_start(verified)
        file = InPlace(verified.stored, verified.header)

        def work(progress: Progress, stop: threading.Event) -> Holding:
            return file.verify(self._reading, progress, stop)

        with self._metrics.stage(Stage.FETCH), span("read", verified.attributes):
            return await self.run(work, flight, lambda holding: holding.release())

    def _log_start(self, verified: Verified) -> None:
        size_bytes, manners = verified.stored.manifest.total_bytes, self._reading.pace.manners
        log.info("checkpoint_start", artifact_id=verified.artifact_id, size_bytes=size_bytes, manners=manners)

    async def run(
        self,
        work: Callable[[Progress, threading.Event], R],
        flight: Flight[Any],
        undo: Callable[[R], None],
    ) -> R:
        """Runs blocking work in a thread that may tell of its progress from any other."""
        loop = asyncio.get_running_loop()

        def told(by_bytes: int) -> None:
            flight.advance(by_bytes)
            self._metrics.read(by_bytes)

        def progress(by_bytes: int) -> None:
            loop.call_soon_threadsafe(told, by_bytes)

        return await run_stoppable(lambda stop: work(progress, stop), undo)
