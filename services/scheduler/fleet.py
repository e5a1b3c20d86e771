"""The engine instances that there are."""

from __future__ import annotations

from collections.abc import Iterator

from services.common.ids import InstanceId, TicketId
from services.common.registry.records import EngineRecord
from services.common.watermark import Bounds
from services.scheduler.engine_instance import Contact, EngineInstance


class Fleet:
    """Engine instances by instance id.

    Args:
        bounds: Of every engine's watermark.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._instances: dict[InstanceId, EngineInstance] = {}

    def __iter__(self) -> Iterator[EngineInstance]:
        return iter(tuple(self._instances.values()))

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def is_heard(self) -> bool:
        """Whether at least one engine's word is at hand."""
        return any(instance.contact is Contact.HEARD for instance in self)

    @property
    def next_expiry_ns(self) -> int | None:
        """When the next unredeemed ticket anywhere expires, in Unix time."""
        times = [instance.ledger.next_expiry_ns for instance in self]
        return min((time for time in times if time is not None), default=None)

    def arrive(self, record: EngineRecord) -> EngineInstance:
        """Takes in an instance that was not known."""
        assert record.instance_id not in self._instances
        instance = EngineInstance(record, self._bounds)
        self._instances[record.instance_id] = instance
        return instance

    def leave(self, instance: EngineInstance) -> None:
        """Forgets an instance, and every promise made on it."""
        del self._instances[instance.instance_id]

    def release(self, ticket_id: TicketId) -> bool:
        """Gives back an unredeemed ticket, wherever it is for; no error where it is for nothing."""
        return any(instance.release(ticket_id) for instance in self)

    def knows(self, ticket_id: TicketId) -> bool:
        """Whether any engine has promised bytes under that id."""
        return any(ticket_id in instance.ledger.promises for instance in self)

    def expire(self, now_ns: int) -> tuple[TicketId, ...]:
        """Closes and names the unredeemed tickets whose time is over."""
        return tuple(ticket_id for instance in self for ticket_id in instance.expire(now_ns))
