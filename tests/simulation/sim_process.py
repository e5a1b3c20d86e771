"""What every process of the simulation is: a record under a lease, and what it is doing."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from services.common.registry.records import ProcessRecord
from services.common.registry.store import LeaseId, Put
from tests.simulation.mirror import Mirror
from tests.simulation.sim_registry import SimRegistry
from tests.simulation.turn import Activity


class SimProcess:
    """Tells the registry of itself, as `Registration` does.

    Args:
        registry: Where to.
        lease: Under which its record is.

    Attributes:
        activities: What it is in the middle of.
    """

    mirrors: Sequence[Mirror[Any]]

    def __init__(self, registry: SimRegistry, lease: LeaseId) -> None:
        self.registry = registry
        self.lease = lease
        self.activities: list[Activity] = []
        self._told: ProcessRecord | None = None

    @property
    def key(self) -> str:
        raise NotImplementedError

    @property
    def record(self) -> ProcessRecord:
        raise NotImplementedError

    @property
    def is_synced(self) -> bool:
        return all(each.is_synced for each in self.mirrors)

    def wake(self, now_s: float) -> None:
        """Does what is due by what it has heard."""
        raise NotImplementedError

    def next_due_s(self, now_s: float) -> float | None:
        """When something becomes due by itself."""
        return None

    def begin(self, work: Coroutine[None, None, Any]) -> None:
        """Does something beside what it is doing."""
        self.activities.append(Activity(work))

    def go_on(self, activity: Activity) -> None:
        """With one of its activities, to its next call."""
        activity.go_on()
        if activity.is_over:
            self.activities.remove(activity)

    def tell(self) -> bool:
        """Writes its record if it has changed; whether it has."""
        record = self.record
        if self.registry.is_away or record == self._told:
            return False
        self._told = record
        self.registry.write((Put(self.key, record.encode(), self.lease),))
        return True

    def renew(self, lease: LeaseId) -> None:
        """Its lease was lost: it takes another one."""
        self.lease, self._told = lease, None

    def crash(self) -> None:
        """Ends where it is; its record stays until its lease ends."""
        for activity in self.activities:
            activity.kill()
