"""The way of a whole artifact into memory, or to where engines map it: its weights as they are stored."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import structlog

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.verified_artifact import check_header
from services.common.ids import ArtifactId
from services.common.telemetry.tracing import span
from services.loader.arrivals import Arrivals, Job, Verified
from services.loader.flight import Flight
from services.loader.in_place import InPlace
from services.loader.intake import FileWanted, Intake, Progress
from services.loader.metrics import Stage
from services.loader.place import Holding
from services.loader.reading import MAPPED, ReadReport
from services.loader.residents import Prepared
from services.loader.verified_lately import VerifiedLately
from services.loader.weight_file import ReadMode

IN_PLACE: Final = "file, the store's own"

log = structlog.get_logger(component="checkpoint")


class Loads:
    """Loads artifacts.

    Args:
        arrivals: Where they come from.
        intake: Takes their weights into memory.
        lately: What need not be read to be checked.
    """

    def __init__(self, arrivals: Arrivals, intake: Intake, lately: VerifiedLately) -> None:
        self._arrivals = arrivals
        self._lately = lately
        self._intake = intake
        self._reading = intake.reading

    @property
    def placement(self) -> str:
        """Where weights last went and why, for people."""
        return IN_PLACE if self._stays_in_place else self._intake.room.placement

    @property
    def report(self) -> ReadReport:
        """How weights were last read."""
        return self._intake.report

    @property
    def _stays_in_place(self) -> bool:
        return self._reading.asked is ReadMode.MMAP

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
        return await self._arrivals.use(artifact_id, flight, job)

    async def check(self, artifact_id: ArtifactId, flight: Flight[Any]) -> None:
        """Verifies one artifact where it lies, keeps nothing in memory, and tells how far it is.

        Raises:
            HalogenError: As `load` does, but for want of room.
        """

        async def work(verified: Verified) -> None:
            async with self._intake.disk:
                stored = verified.stored
                if await asyncio.to_thread(self._lately.has, stored.path(stored.manifest.weights)):
                    flight.advance(stored.manifest.weights.size_bytes)
                else:
                    await self._verify_in_place(verified, flight)

        await self._arrivals.use(artifact_id, flight, Job(work=work))

    async def _foresee(self, stored: StoredArtifact) -> None:
        """Refuses what memory would be short for; what lies there already, and what stays on the disk, takes none."""
        if not self._stays_in_place and not self._intake.commons.has(stored.manifest.id):
            await self._intake.room.check_memory(stored.manifest.weights.size_bytes)

    async def _find(self, stored: StoredArtifact, flight: Flight[Any]) -> Prepared | None:
        """What lies in memory, or is on its way there."""
        artifact_id = stored.manifest.id
        if self._stays_in_place or not self._intake.commons.has(artifact_id):
            return None
        async with self._intake.turn(artifact_id), self._intake.disk:
            return await self._adopt(stored, flight)

    async def _load(self, verified: Verified, flight: Flight[Any]) -> Prepared:
        if self._stays_in_place:
            async with self._intake.disk:
                return await self._leave_in_place(verified, flight)
        async with self._intake.turn(verified.artifact_id), self._intake.disk:
            return await self._adopt(verified.stored, flight) or await self._read(verified, flight)

    async def _adopt(self, stored: StoredArtifact, flight: Flight[Any]) -> Prepared | None:
        manifest = stored.manifest
        adopted = await self._intake.adopt(
            _file(manifest.id), lambda header: check_header(header, manifest), flight
        )
        if adopted is None:
            return None
        return Verified(stored, adopted.header).prepared(adopted.holding, huge_pages=adopted.huge_pages)

    async def _read(self, verified: Verified, flight: Flight[Any]) -> Prepared:
        self._log_start(verified)
        stored = verified.stored
        path = stored.path(stored.manifest.weights)
        read = await self._intake.read(_file(verified.artifact_id), path, verified.header, flight)
        return verified.prepared(read.holding, huge_pages=read.huge_pages)

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

        with self._intake.metrics.stage(Stage.FETCH), span("read", verified.attributes):
            return await self._intake.run(work, flight, lambda holding: holding.release())

    def _log_start(self, verified: Verified) -> None:
        size_bytes, manners = verified.stored.manifest.total_bytes, self._reading.pace.manners
        log.info("checkpoint_start", artifact_id=verified.artifact_id, size_bytes=size_bytes, manners=manners)


def _file(artifact_id: ArtifactId) -> FileWanted:
    return FileWanted(artifact_id, artifact_id)
