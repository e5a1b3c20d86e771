"""What a scheduler does while it leads, and leaves to another while it does not."""

from __future__ import annotations

from services.common.registry.election import Election
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.records import SchedulerRecord
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.scheduler.rollout_writer import RolloutWriter
from services.scheduler.ticket_desk import TicketDesk


class Leadership:
    """Grants tickets and ends publishes, while elected. On standby both are kept warm and do nothing.

    Args:
        desk: Grants.
        writer: Ends publishes.
        registration: Tells in which term this scheduler leads.
    """

    def __init__(
        self, desk: TicketDesk, writer: RolloutWriter, registration: Registration[SchedulerRecord]
    ) -> None:
        self._desk = desk
        self._writer = writer
        self._registration = registration

    async def seek(self, store: Store, ttl_s: int) -> None:
        """Stands for election until cancelled; then resigns before it returns.

        Args:
            store: The registry.
            ttl_s: Seconds after which a silent leader is replaced.
        """
        own = self._registration.record
        candidate = LeaderRecord(id=own.id, instance_id=own.instance_id, address=own.address, term=0)
        async with Election(store, candidate, ttl_s, self._change):
            await self._writer.follow()

    def _change(self, term: int | None) -> None:
        if term is None:
            self._desk.stand_by()
            self._writer.stand_by()
        else:
            self._desk.lead(term)
            self._writer.lead()
        self._registration.update(self._registration.record.model_copy(update={"term": term or 0}))
