"""A scheduler of the simulation, which leads, or believes that it still does."""

from __future__ import annotations

from typing import Final

from services.common.ids import InstanceId, ProcessId
from services.common.registry import keys
from services.common.registry.records import EngineRecord, GatewayRecord, SchedulerRecord, Serving, Target
from services.common.registry.store import LeaseId
from services.scheduler.patience import Patience
from services.scheduler.rollout import Step, steps_due
from services.scheduler.rollout_transaction import Concerned, Standing, transaction
from tests.simulation.mirror import Mirror
from tests.simulation.sim_process import SimProcess
from tests.simulation.sim_registry import SimRegistry

COMMIT_TIMEOUT_S: Final = 5.0


class SimScheduler(SimProcess):
    """Does what `RolloutWriter` does. All of them lead: one at a time must need no luck.

    Args:
        registry: What it follows.
        number: Which scheduler it is, of those that there are.
        lease: Under which its record is.
    """

    def __init__(self, registry: SimRegistry, number: int, lease: LeaseId) -> None:
        super().__init__(registry, lease)
        self.id = ProcessId(f"scheduler-{number}")
        self._targets = Mirror(registry, keys.TARGETS, Target)
        self._serving = Mirror(registry, keys.SERVING, Serving)
        self._engines = Mirror(registry, keys.ENGINES, EngineRecord)
        self._gateways = Mirror(registry, keys.GATEWAYS, GatewayRecord)
        self.mirrors = (self._targets, self._serving, self._engines, self._gateways)
        self._patience = Patience(COMMIT_TIMEOUT_S)

    def wake(self, now_s: float) -> None:
        """Begins to write what is due, unless it is writing."""
        if self.is_synced and not self.activities and (due := self._due(now_s)):
            self.begin(self._write_all(due))

    def next_due_s(self, now_s: float) -> float | None:
        return self._patience.next_end_s(now_s)

    @property
    def record(self) -> SchedulerRecord:
        return SchedulerRecord(
            id=self.id,
            instance_id=InstanceId(f"{self.id}-{self.lease}"),
            address="x:1",
            host="h",
            start_time="2026-01-01T00:00:00+00:00",
        )

    @property
    def key(self) -> str:
        return keys.scheduler(self.id)

    def _due(self, now_s: float) -> list[Step]:
        return steps_due(
            targets=self._targets.records,
            serving=self._serving.records,
            engines=tuple(self._engines.records.values()),
            gateways=tuple(self._gateways.records.values()),
            patience=self._patience,
            now_s=now_s,
        )

    async def _write_all(self, due: list[Step]) -> None:
        for step in due:
            standing = Standing(*[await self.registry.get(key) for key in Concerned.by(step)])
            if writes := transaction(step, standing, "2026-01-01T00:00:00+00:00"):
                await self.registry.commit(writes.conditions, writes.writes)
