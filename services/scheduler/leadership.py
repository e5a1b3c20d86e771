"""What a scheduler does while it leads, and leaves to another while it does not."""

from __future__ import annotations

from services.common.registry.election import Election
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.records import SchedulerRecord
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.scheduler.registry_push import RegistryPush
from services.scheduler.rollout_writer import RolloutWriter
from services.scheduler.ticket_desk import TicketDesk


class Leadership:
    """Grants tickets, ends publishes and tells of commits, while elected. On standby all are warm and do nothing.

    Args:
        desk: Grants.
        writer: Ends publishes.
        registration: Tells in which term this scheduler leads.
        push: Tells a registry of models, where there is one.
    """

    def __init__(
        self,
        desk: TicketDesk,
        writer: RolloutWriter,
        registration: Registration[SchedulerRecord],
        push: RegistryPush | None = None,
    ) -> None:
        self._desk = desk
        self._writer = writer
        self._works: tuple[RolloutWriter | RegistryPush, ...] = (writer, push) if push else (writer,)
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
            for work in self._works:
                work.stand_by()
        else:
            self._desk.lead(term)
            for work in self._works:
                work.lead()
        self._registration.update(self._registration.record.model_copy(update={"term": term or 0}))
