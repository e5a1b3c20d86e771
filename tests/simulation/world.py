"""The simulation: a registry, two processes of each kind that follow it, requests, faults, and a clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, Final

from services.common.checkpoint import canonical
from services.common.ids import ArtifactId, Cohort, ModelName
from services.common.registry import keys
from services.common.registry.records import ArtifactRecord, ArtifactState
from services.common.registry.records import GenerationState as State
from services.common.registry.store import LeaseId, Put
from tests.simulation.engine_watch import EngineWatch
from tests.simulation.mirror import Mirror
from tests.simulation.registry_watch import RegistryWatch
from tests.simulation.sim_engine import SimEngine
from tests.simulation.sim_gateway import SimGateway
from tests.simulation.sim_process import SimProcess
from tests.simulation.sim_registry import SimRegistry
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.stream import Stream
from tests.unit.gateway.control.builders import manifest

MODEL: Final = ModelName("m")
COHORTS: Final = tuple(Cohort)
ARTIFACTS: Final = tuple(ArtifactId(letter * 64) for letter in "abcd")
NODES: Final = 2  # of each kind
_READY: Final = ArtifactRecord(
    manifest=canonical.decode(manifest("a").encode()), state=ArtifactState.READY
).encode()


class World:
    """What a schedule moves.

    Args:
        seed: Of what the schedule leaves open.

    Attributes:
        engines: By number; None is one that has crashed.
        gateways: The same.
        schedulers: The same.
        torn: Artifacts that cannot be loaded by anybody, for now.
        orphans: Leases of processes that have crashed.
        streams: Requests under way.
        now_s: The clock of all.
    """

    def __init__(self, seed: int) -> None:
        self.registry = SimRegistry()
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.torn: set[ArtifactId] = set()
        self.orphans: list[LeaseId] = []
        self.streams: list[Stream] = []
        self._leases = itertools.count(1)
        self._watches: dict[SimEngine, EngineWatch] = {}
        self._records = RegistryWatch(lambda: filter(None, self.engines))
        self.registry.on_commit = self._records.on_commit
        self.registry.write([Put(keys.artifact(MODEL, each), _READY) for each in ARTIFACTS])
        self.engines: list[SimEngine | None] = [self._engine(number) for number in range(NODES)]
        self.gateways: list[SimGateway | None] = [self._gateway(number) for number in range(NODES)]
        self.schedulers: list[SimScheduler | None] = [self._scheduler(number) for number in range(NODES)]

    @property
    def live_engines(self) -> list[SimEngine]:
        return [each for each in self.engines if each]

    @property
    def live_gateways(self) -> list[SimGateway]:
        return [each for each in self.gateways if each]

    @property
    def live(self) -> list[SimProcess]:
        """All that have not crashed."""
        every = (*self.engines, *self.gateways, *self.schedulers)
        return [each for each in every if each]

    @property
    def mirrors(self) -> list[Mirror[Any]]:
        return [mirror for each in self.live for mirror in each.mirrors]

    def wake(self, process: SimProcess) -> None:
        """It does what is due, and is judged by that."""
        process.wake(self.now_s)
        if isinstance(process, SimEngine):
            self._watches[process].after_wake()
            self._end_streams(process)

    def lease(self) -> LeaseId:
        """A fresh one."""
        return LeaseId(next(self._leases))

    def crash(self, process: SimProcess) -> None:
        """Ends a process where it is, with the requests that it has."""
        process.crash()
        self.orphans.append(process.lease)
        if isinstance(process, SimEngine):
            self.streams = [each for each in self.streams if each.engine is not process]
        for nodes in self._kinds():
            nodes[:] = [None if each is process else each for each in nodes]

    def restart(self) -> None:
        """Starts all that have crashed anew."""
        makers: tuple[Callable[[int], Any], ...] = (self._engine, self._gateway, self._scheduler)
        for nodes, make in zip(self._kinds(), makers, strict=True):
            nodes[:] = [each or make(number) for number, each in enumerate(nodes)]

    def active_on(self, artifact_id: ArtifactId) -> list[SimEngine]:
        """Engines that take tickets for it."""
        return [each for each in self.live_engines if each.state_of(artifact_id) is State.ACTIVE]

    def _end_streams(self, engine: SimEngine) -> None:
        """Those whose drain has lasted too long."""
        while engine.ending:
            overdue = engine.ending.pop()
            for stream in [each for each in self.streams if each.held and each.held.lender is overdue]:
                stream.end()
                self.streams.remove(stream)

    def _kinds(self) -> tuple[list[Any], ...]:
        return self.engines, self.gateways, self.schedulers

    def _engine(self, number: int) -> SimEngine:
        engine = SimEngine(self.registry, number, self.lease(), torn=self.torn, chance=self.chance)
        self._watches[engine] = EngineWatch(engine, self._records.served_at)
        return engine

    def _gateway(self, number: int) -> SimGateway:
        return SimGateway(self.registry, number, self.lease())

    def _scheduler(self, number: int) -> SimScheduler:
        return SimScheduler(self.registry, number, self.lease())
