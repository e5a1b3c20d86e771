"""Who may come in: each ticket once, on the instance it was made for, from a leader that has not been replaced."""

from __future__ import annotations

import heapq
from typing import Final

from services.common.errors import PreconditionFailed, Unauthenticated
from services.common.ids import InstanceId, TicketId
from services.common.ticket import Ticket, TicketSigner

# A ticket this long past its expiry is refused, so that its id need not be remembered for ever. Until then
# a late one may come in: the arena has the last word on whether there is room.
LATEST_NS: Final = 60 * 10**9


class TicketGate:
    """Redeems tickets.

    Args:
        instance_id: This start of this engine.
        signer: Shares its key with the schedulers.
    """

    def __init__(self, instance_id: InstanceId, signer: TicketSigner) -> None:
        self._instance_id = instance_id
        self._signer = signer
        self._term = 0
        self._used: set[TicketId] = set()
        self._forget: list[tuple[int, TicketId]] = []  # a heap: when an id may be forgotten

    def redeem(self, ticket: Ticket, mac: bytes, now_ns: int) -> None:
        """Lets a ticket in, once.

        Args:
            ticket: As it came.
            mac: As it came.
            now_ns: Unix time.

        Raises:
            Unauthenticated: There is none.
            PermissionDenied: It was not signed with our key.
            PreconditionFailed: For another instance, from an older term, too old, or used before.
        """
        if not mac:
            raise Unauthenticated(
                "there is no signed ticket; ask SchedulerService.GrantTicket for one", reason="TICKET_MISSING"
            )
        self._signer.check(ticket, mac)
        if ticket.engine_instance_id != self._instance_id:
            self._refuse("it is for another instance of this engine", "TICKET_FOR_OTHER_INSTANCE")
        if ticket.term < self._term:
            self._refuse(f"its term {ticket.term} is over; {self._term} has begun", "TICKET_TERM_OVER")
        self._forget_until(now_ns)
        if ticket.id in self._used:
            self._refuse("it has been used", "TICKET_USED")
        if now_ns > ticket.expire_time_ns + LATEST_NS:
            self._refuse("it expired long ago", "TICKET_EXPIRED")
        self._term = ticket.term
        self._used.add(ticket.id)
        heapq.heappush(self._forget, (ticket.expire_time_ns + LATEST_NS, ticket.id))

    def _forget_until(self, now_ns: int) -> None:
        while self._forget and self._forget[0][0] < now_ns:
            self._used.discard(heapq.heappop(self._forget)[1])

    def _refuse(self, why: str, reason: str) -> None:
        raise PreconditionFailed(f"the ticket cannot be redeemed: {why}; ask for a new one", reason=reason)
