"""The way of an artifact into the files of tensor-parallel ranks: those that are there adopted, the others made."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Mapping
from typing import Any

import structlog

from services.common.checkpoint.header import Header
from services.common.checkpoint.rank_file import RankFile
from services.common.errors import CorruptData, InvalidRequest, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.stoppable import run_stoppable
from services.loader.adoption import Adoption, check_layout
from services.loader.arrivals import Arrivals, Job, Verified
from services.loader.flight import Flight
from services.loader.intake import Intake, Progress
from services.loader.metrics import Stage
from services.loader.place import Holding
from services.loader.rank_load import RankLoad, RankMade
from services.loader.ranks import file_name, rank_name
from services.loader.reading import HowRead
from services.loader.reservation import Reservation
from services.loader.residents import Prepared
from services.loader.weight_file import ReadMode

log = structlog.get_logger()


class RankLoads:
    """Loads the files of ranks.

    Args:
        arrivals: Where artifacts come from.
        intake: Has disk, room and turns, which whole artifacts share.
    """

    def __init__(self, arrivals: Arrivals, intake: Intake) -> None:
        self._arrivals = arrivals
        self._intake = intake
        self._commons = intake.commons
        self._room = intake.room
        self._reading = intake.reading
        self._metrics = intake.metrics

    async def load(
        self, artifact_id: ArtifactId, size: int, ranks: Collection[int], flight: Flight[Any]
    ) -> dict[str, Prepared]:
        """Loads the files of some of the `size` ranks; returns them by the ranks' names.

        Raises:
            InvalidRequest: The tensors cannot be divided among so many.
            PreconditionFailed: This loader maps whole files.
            HalogenError: As `Loads.load` raises.
        """
        if self._reading.asked is ReadMode.MMAP:
            raise PreconditionFailed(
                "this loader maps whole files; for tensor-parallel ranks start it without --read-mode mmap",
                reason="READ_MODE",
            )
        job = Job(work=lambda verified: self._load(verified, size, ranks, flight))
        return await self._arrivals.use(artifact_id, flight, job)

    async def _load(
        self, verified: Verified, size: int, ranks: Collection[int], flight: Flight[Any]
    ) -> dict[str, Prepared]:
        artifact_id = verified.artifact_id
        files = await asyncio.to_thread(_plan, verified.header, size, ranks)
        async with contextlib.AsyncExitStack() as turns:
            for rank in sorted(files):
                await turns.enter_async_context(self._commons.turn(_name(artifact_id, rank, size)))
            await turns.enter_async_context(self._intake.disk)
            made = await self._adopt(verified, size, files)
            with contextlib.ExitStack() as undo:
                undo.callback(_let_go, made)
                if missing := {rank: file for rank, file in files.items() if rank not in made}:
                    made = made | await self._read(verified, size, missing, flight)
                undo.pop_all()
        return {rank_name(rank, size): _prepared(verified, rank, size, one) for rank, one in made.items()}

    async def _adopt(
        self, verified: Verified, size: int, files: Mapping[int, RankFile]
    ) -> dict[int, RankMade]:
        """The files that are there already and sound."""
        found = {
            rank: holding
            for rank in files
            if (holding := self._commons.find(_name(verified.artifact_id, rank, size)))
        }
        threads = self._reading.threads

        def adopt(stop: threading.Event) -> dict[int, RankMade]:
            adopted: dict[int, RankMade] = {}
            with contextlib.ExitStack() as undo:
                for rank, holding in found.items():
                    undo.callback(holding.let_go)
                    if one := _adopted(holding, files[rank].header, threads, stop):
                        adopted[rank] = one
                        undo.callback(one.holding.let_go)
                undo.pop_all()
            return adopted

        if not found:
            return {}
        with self._metrics.stage(Stage.ADOPT):
            return await run_stoppable(adopt, _let_go)

    async def _read(
        self, verified: Verified, size: int, files: Mapping[int, RankFile], flight: Flight[Any]
    ) -> dict[int, RankMade]:
        log.info("checkpoint_start", artifact_id=verified.artifact_id, ranks=sorted(files), of=size)
        with self._metrics.stage(Stage.PLACE):
            reservations = await self._reserve(verified.artifact_id, size, files)
        load = RankLoad(verified.stored, verified.header, files, reservations)

        def work(progress: Progress, stop: threading.Event) -> tuple[dict[int, RankMade], HowRead]:
            return load.run(self._reading, progress, stop)

        with self._metrics.stage(Stage.FETCH):
            made, how = await self._intake.run(work, flight, lambda result: _release(result[0]))
        self._intake.report.tell(how, self._reading.pace.manners)
        return made

    async def _reserve(
        self, artifact_id: ArtifactId, size: int, files: Mapping[int, RankFile]
    ) -> dict[int, Reservation]:
        """Room for all of them, or for none."""
        await self._room.check_memory(sum(file.header.file_bytes for file in files.values()))
        reservations: dict[int, Reservation] = {}
        with contextlib.ExitStack() as discards:
            for rank, file in files.items():
                name = _name(artifact_id, rank, size)
                reservations[rank] = await self._room.reserve(name, file.header.file_bytes)
                discards.callback(reservations[rank].discard)
            discards.pop_all()
        return reservations


def _plan(header: Header, size: int, ranks: Collection[int]) -> dict[int, RankFile]:
    try:
        return {rank: RankFile.plan(header, rank, size) for rank in ranks}
    except ValueError as fault:
        raise InvalidRequest(
            f"{size} tensor-parallel ranks cannot share this model: {fault}", reason="TENSOR_PARALLEL_SIZE"
        ) from None


def _adopted(holding: Holding, expected: Header, threads: int, stop: threading.Event) -> RankMade | None:
    """The rank's file if it is what its own digests say, and laid out as it would be made anew."""
    try:
        return RankMade(*Adoption(holding, lambda found: check_layout(found, expected)).run(threads, stop))
    except CorruptData as fault:
        log.warning("adoption_refused", place=holding.kind, error=str(fault))
        return None


def _prepared(verified: Verified, rank: int, size: int, made: RankMade) -> Prepared:
    return Prepared(
        artifact_id=verified.artifact_id,
        part=rank_name(rank, size),
        path=verified.stored.manifest.weights.path,
        identity=made.header.identity,
        holding=made.holding,
        huge_pages=made.huge_pages,
    )


def _name(artifact_id: ArtifactId, rank: int, size: int) -> str:
    return file_name(artifact_id, rank_name(rank, size))


def _let_go(made: Mapping[int, RankMade]) -> None:
    for one in made.values():
        one.holding.let_go()


def _release(made: Mapping[int, RankMade]) -> None:
    for one in made.values():
        one.holding.release()
