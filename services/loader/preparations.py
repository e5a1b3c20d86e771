"""Artifacts made ready for engines: each read, verified and placed once per host, however many ask."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import structlog

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.errors import HalogenError, InternalError
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, MemoryGuard
from services.loader.arrivals import Arrivals
from services.loader.artifacts import Artifacts
from services.loader.commons import Commons
from services.loader.derived_cache import NO_CACHE, DerivedCache
from services.loader.derived_loads import DerivedLoads, NotDerived
from services.loader.flight import Done, Flight
from services.loader.intake import Intake
from services.loader.loads import Loads
from services.loader.metrics import LoaderMetrics
from services.loader.place import Place
from services.loader.rank_loads import RankLoads
from services.loader.ranks import file_name, rank_name
from services.loader.reading import Reading, ReadReport
from services.loader.residents import Prepared, Residents
from services.loader.room import Room
from services.loader.verified_lately import VerifiedLately
from services.loader.wanted import AS_STORED, Wanted

log = structlog.get_logger()


class Preparations:
    """Single flight per artifact, among the loaders of this host too; called off when nobody waits for it any more.

    A scope: it takes over what loaders that are gone have left, and leaves nothing that no other loader counts on.

    Args:
        artifacts: Where they come from.
        places: Where weights may go, best first.
        reading: How weights are read.
        keep_s: How long an artifact stays in memory for certain after somebody asked for it.
        metrics: Told of every load.
        guard: Bounds the memory that weights may take.
        admit: Looks at an artifact before more of it than its manifest is read; raises what speaks against it.
        derived: Where files in kernels' layouts lie.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        places: Sequence[Place],
        *,
        reading: Reading,
        keep_s: float,
        metrics: LoaderMetrics,
        guard: MemoryGuard = UNGUARDED,
        admit: Callable[[StoredArtifact], object] = lambda _: None,
        derived: DerivedCache = NO_CACHE,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = tuple(places)
        self._metrics = metrics
        self._clock_s = clock_s
        self._flights: dict[str, Flight[dict[str, Prepared]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()
        self._residents = Residents(keep_s)
        self._commons = Commons(self._places)
        room = Room(self._places, self._residents, self._drop, guard, clock_s)
        arrivals = Arrivals(artifacts, metrics, admit)
        intake = Intake(self._commons, room, reading, metrics)
        lately = VerifiedLately(keep_s, clock_s)
        self._checks: dict[ArtifactId, Flight[None]] = {}
        self._loads = Loads(arrivals, intake, lately)
        self._rank_loads = RankLoads(arrivals, intake)
        self._derived_loads = DerivedLoads(arrivals, intake, derived, lately)
        self._rest_timer: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()  # set when artifact_ids, placement or report may have changed

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        for name in await asyncio.to_thread(self._commons.claim):
            if left := Wanted.of_name(name):
                self._take_off(*left).call_off = None  # nobody has asked for it
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for task in self._tasks:
                task.cancel()
            await self._group.__aexit__(kind, value, trace)
        finally:
            if self._rest_timer:
                self._rest_timer.cancel()
            self._commons.close()
            for prepared in list(self._residents):
                self._residents.remove(prepared.name).holding.release()
            for place in self._places:
                place.close()

    @property
    def artifact_ids(self) -> tuple[ArtifactId, ...]:
        """Those in memory."""
        return self._residents.artifact_ids

    @property
    def file_names(self) -> tuple[str, ...]:
        """Of what lies in memory: an artifact's id, and its part or layout after a dot where it has one."""
        return self._residents.names

    @property
    def residents(self) -> Iterable[Prepared]:
        """The same, with where they lie."""
        return self._residents

    @property
    def placement(self) -> str:
        """Where weights last went and why, for people."""
        return self._loads.placement

    @property
    def report(self) -> ReadReport:
        """How weights were last read."""
        return self._loads.report

    async def prepare(
        self, artifact_id: ArtifactId, wanted: Wanted = AS_STORED
    ) -> AsyncGenerator[Done | Prepared, None]:
        """Yields progress, then the prepared artifact; at once when it is there already.

        What cannot be had in the layout that is wanted comes as it is stored.

        Args:
            artifact_id: Of the artifact.
            wanted: What of it.

        Raises:
            NotFound: The store does not have it.
            CorruptData: A byte of it is wrong; nothing of it is kept.
            PreconditionFailed: It is not for this host; nothing but its manifest was read.
            Overloaded: There is no room for it.
            Unavailable: The store is not there.
        """
        try:
            async with contextlib.aclosing(self._prepare(artifact_id, wanted)) as steps:
                async for step in steps:
                    yield step
        except NotDerived:
            async with contextlib.aclosing(self._prepare(artifact_id, AS_STORED)) as steps:
                async for step in steps:
                    yield step

    async def _prepare(
        self, artifact_id: ArtifactId, wanted: Wanted
    ) -> AsyncGenerator[Done | Prepared, None]:
        name = wanted.file_name(artifact_id)
        prepared = self._present(name)
        while prepared is None:
            flight = self._flights.get(wanted.flight(artifact_id)) or self._take_off(artifact_id, wanted)
            async with contextlib.aclosing(flight.follow()) as progress:
                async for done in progress:
                    yield done
            made = {} if flight.is_called_off else flight.result()
            prepared = made.get(wanted.part) or self._present(name)  # or it was for other ranks
        yield prepared

    async def check(self, artifact_id: ArtifactId) -> AsyncGenerator[Done, None]:
        """Yields progress until every byte is verified where it lies; nothing of it is kept in memory.

        Who comes meanwhile waits for the same; what was packed a moment ago has just been verified.

        Raises:
            HalogenError: As `prepare` does, but for want of room.
        """
        while True:
            flight = self._checks.get(artifact_id) or self._begin_check(artifact_id)
            async with contextlib.aclosing(flight.follow()) as progress:
                async for done in progress:
                    yield done
            if not flight.is_called_off:
                flight.result()
                return

    def _begin_check(self, artifact_id: ArtifactId) -> Flight[None]:
        flight = self._checks[artifact_id] = Flight()
        task = self._group.create_task(self._check(artifact_id, flight), name=f"check-{artifact_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        flight.call_off = task.cancel
        return flight

    async def _check(self, artifact_id: ArtifactId, flight: Flight[None]) -> None:
        try:
            await self._loads.check(artifact_id, flight)
        except asyncio.CancelledError:
            flight.fail(InternalError("the loader is ending"))  # or nobody hears it
            raise
        except Exception as failure:  # noqa: BLE001  # must reach who waits, whatever it is
            flight.fail(failure)
        else:
            flight.finish(None)
        finally:
            del self._checks[artifact_id]

    def _present(self, name: str) -> Prepared | None:
        prepared = self._residents.ask(name, self._clock_s())
        if prepared is None or prepared.holding.is_there:
            self._let_rest()
            return prepared
        log.warning("resident_vanished", name=name, place=prepared.holding.kind)
        self._drop(prepared)
        return None

    def _drop(self, prepared: Prepared) -> None:
        self._residents.remove(prepared.name).holding.release()
        self.changed.set()

    def _let_rest(self) -> None:
        """Lets those rest that nobody asks for, now and when the next one is due."""
        if self._rest_timer:
            self._rest_timer.cancel()
        due_s = self._residents.rest_idle(self._clock_s())
        if due_s is not None:
            delay_s = due_s - self._clock_s()
            self._rest_timer = asyncio.get_running_loop().call_later(delay_s, self._let_rest)

    def _take_off(self, artifact_id: ArtifactId, wanted: Wanted) -> Flight[dict[str, Prepared]]:
        flight = self._flights[wanted.flight(artifact_id)] = Flight()
        work = self._fly(artifact_id, wanted, flight)
        task = self._group.create_task(work, name=f"prepare-{artifact_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        flight.call_off = task.cancel
        return flight

    async def _fly(
        self, artifact_id: ArtifactId, wanted: Wanted, flight: Flight[dict[str, Prepared]]
    ) -> None:
        outcome = "cancelled"
        try:
            made = await self._load(artifact_id, wanted, flight)
            for prepared in made.values():
                self._residents.add(prepared, self._clock_s())
            self._let_rest()
            flight.finish(made)
            outcome = "ready"
        except NotDerived as why:
            log.warning("layout_not_derived", artifact_id=artifact_id, layout=wanted.part, why=str(why))
            flight.fail(why)
            outcome = "not_derived"
        except HalogenError as failure:
            outcome = failure.reason.lower()
            log.warning("checkpoint_refused", artifact_id=artifact_id, error=str(failure))
            if failure.retry_after_s is not None:
                self._commons.leave(wanted.file_name(artifact_id))
            flight.fail(failure)
        except asyncio.CancelledError:
            flight.fail(InternalError("the loader is ending"))  # or nobody hears it
            raise
        except Exception as failure:  # must reach those who wait, whatever it is
            log.exception("checkpoint_failed", artifact_id=artifact_id)
            flight.fail(failure)
            outcome = "internal"
        finally:
            self._metrics.end(outcome)
            del self._flights[wanted.flight(artifact_id)]
            self._commons.drop(wanted.file_name(artifact_id))
            self.changed.set()

    async def _load(
        self, artifact_id: ArtifactId, wanted: Wanted, flight: Flight[dict[str, Prepared]]
    ) -> dict[str, Prepared]:
        """What is made, by part: the whole, or the files of those ranks here that are not there already."""
        if ranks := wanted.ranks:
            names = {rank: file_name(artifact_id, rank_name(rank, ranks.size)) for rank in ranks.here}
            missing = [rank for rank, name in names.items() if self._present(name) is None]
            return await self._rank_loads.load(artifact_id, ranks.size, missing, flight)
        if wanted.layout:
            return {wanted.part: await self._derived_loads.load(artifact_id, wanted.layout, flight)}
        return {"": await self._loads.load(artifact_id, flight)}
