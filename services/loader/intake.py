"""The way of one weight file into memory: adopted where it is there already, else placed and read. One at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from services.common.checkpoint.header import Header
from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.common.stoppable import run_stoppable
from services.common.telemetry.attributes import ARTIFACT_ID, SIZE_BYTES
from services.common.telemetry.tracing import span
from services.loader.adoption import Adopted, Adoption
from services.loader.commons import Commons
from services.loader.flight import Flight
from services.loader.metrics import LoaderMetrics, Stage
from services.loader.place import Holding
from services.loader.reading import HowRead, Reading, ReadReport
from services.loader.room import Room
from services.loader.weight_load import WeightLoad

R = TypeVar("R")
Progress = Callable[[int], None]

log = structlog.get_logger(component="checkpoint")


class FileWanted(NamedTuple):
    """A weight file that is wanted in memory.

    Attributes:
        artifact_id: Whose weights it has.
        name: Of the file, in memory.
    """

    artifact_id: ArtifactId
    name: str


class Intake:
    """Takes files in.

    Args:
        commons: What other loaders of this host have made.
        room: Where weights go.
        reading: How they are read.
        metrics: Told of every stage.
    """

    def __init__(self, commons: Commons, room: Room, reading: Reading, metrics: LoaderMetrics) -> None:
        self.commons = commons
        self.room = room
        self.reading = reading
        self.metrics = metrics
        self.disk = asyncio.Lock()  # two reads at a time would only slow each other down
        self.report = ReadReport()

    def turn(self, name: str) -> AbstractAsyncContextManager[None]:
        """Waits for the turn to make the file of that name, and holds it for the scope."""
        return self.commons.turn(name)

    async def adopt(
        self, wanted: FileWanted, check: Callable[[Header], object], flight: Flight[Any]
    ) -> Adopted | None:
        """The file that is there already, if it is sound; one that is not loses its name. Needs turn and disk.

        Args:
            wanted: Which.
            check: Raises CorruptData for any header but the one that is wanted.
            flight: Told how far it is.
        """
        holding = self.commons.find(wanted.name)
        if holding is None:
            return None
        told = {"artifact_id": wanted.artifact_id, "name": wanted.name, "place": holding.kind}
        adoption, threads = Adoption(holding, check), self.reading.threads
        try:
            with self.metrics.stage(Stage.ADOPT):
                adopted = await run_stoppable(
                    lambda stop: adoption.run(threads, stop), lambda adopted: adopted.holding.let_go()
                )
        except CorruptData as fault:
            log.warning("adoption_refused", error=str(fault), **told)
            self.commons.condemn(holding)
            return None
        log.info("checkpoint_adopted", **told)
        flight.advance(adopted.header.file_bytes)
        return adopted

    async def read(self, wanted: FileWanted, path: Path, header: Header, flight: Flight[Any]) -> Adopted:
        """Makes room and reads the file at `path`, whose header is verified, into it. Needs turn and disk.

        Raises:
            CorruptData: A block does not match its digest.
            Overloaded: There is no room.
        """
        with self.metrics.stage(Stage.PLACE):
            reservation = await self.room.reserve(wanted.name, header.file_bytes)
        load = WeightLoad(path, wanted.artifact_id, header, reservation)

        def work(progress: Progress, stop: threading.Event) -> tuple[Holding, HowRead]:
            return load.run(self.reading, progress, stop)

        told: dict[str, str | int] = {ARTIFACT_ID: wanted.artifact_id, SIZE_BYTES: header.file_bytes}
        with self.metrics.stage(Stage.FETCH), span("read", told):
            holding, how = await self.run(work, flight, lambda made: made[0].release())
        self.report.tell(how, self.reading.pace.manners)
        return Adopted(header, holding, reservation.huge_pages)

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
            self.metrics.read(by_bytes)

        def progress(by_bytes: int) -> None:
            loop.call_soon_threadsafe(told, by_bytes)

        return await run_stoppable(lambda stop: work(progress, stop), undo)
