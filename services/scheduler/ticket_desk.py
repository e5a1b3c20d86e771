"""Where requests wait for their tickets: admission, with an event loop and a clock around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import structlog

from services.common.errors import AlreadyExists, Cancelled
from services.common.ids import TicketId
from services.common.recent_ids import RecentIds
from services.scheduler.admission import Admission, Grant, Refusal
from services.scheduler.request import TicketRequest

_MOST_RELEASED: Final = 4096
_RELEASED_S: Final = 60.0  # how far a release may overtake its question

log = structlog.get_logger()


class TicketDesk:
    """Hands out grants, and takes back those whose holders have left or waited too long.

    Args:
        admission: Decides.
        clock: Unix time in nanoseconds.
    """

    def __init__(self, admission: Admission, clock: Callable[[], int] = time.time_ns) -> None:
        self.admission = admission
        self._clock = clock
        self._turns: dict[TicketRequest, asyncio.Future[Grant]] = {}
        self._waiting: dict[TicketId, TicketRequest] = {}
        self._released = RecentIds[TicketId](_MOST_RELEASED, _RELEASED_S)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()

    def lead(self, term: int) -> None:
        """Grants in `term` from now on."""
        self.admission.lead(term)

    def stand_by(self) -> None:
        """Grants no more, and sends those who wait to the next leader. What was granted stands until it expires."""
        self._turn_away(self.admission.stand_by())

    async def obtain(self, request: TicketRequest) -> Grant:
        """Waits for the request's turn; a caller that is cancelled leaves nothing behind.

        Raises:
            InvalidRequest: It could never be granted.
            Unavailable: No engine has its artifact, or none has any more; or another scheduler leads.
            Overloaded: The queue is full.
            AlreadyExists: Its ticket's id is in use.
            Cancelled: Its ticket was released before it was granted.
        """
        if request.ticket_id in self._waiting or self.admission.fleet.knows(request.ticket_id):
            raise AlreadyExists("a ticket of that id exists; give every ticket its own id")
        if self._released.holds(request.ticket_id, self._clock() / 1e9):
            raise _released_early()
        grant = self.admission.admit(request, self._clock())
        if grant is None:
            return await self._wait(request)
        self._set_timer()
        return grant

    def release(self, ticket_id: TicketId) -> None:
        """Takes back a ticket that will not be redeemed, whether it is granted, waited for, or yet to be asked for.

        The caller that releases what it never heard of may overtake its own question.
        """
        if self.admission.fleet.release(ticket_id):
            self.settle()
        elif request := self._waiting.get(ticket_id):
            if self.admission.withdraw(request):
                self._turns[request].set_exception(_released_early())
                self.settle()
        elif not self.admission.fleet.knows(ticket_id):
            self._released.add(ticket_id, self._clock() / 1e9)

    def settle(self, *, engines_changed: bool = False) -> None:
        """Gives everyone their due after something has changed."""
        if engines_changed:
            self._turn_away(self.admission.refuse())
        for grant in self.admission.decide(self._clock()):
            self._hand_over(grant)
        self._set_timer()

    async def _wait(self, request: TicketRequest) -> Grant:
        turn: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._turns[request] = turn
        self._waiting[request.ticket_id] = request
        try:
            return await turn
        except asyncio.CancelledError:
            if self.admission.withdraw(request):
                self.settle()
            elif not turn.cancelled() and turn.exception() is None:  # granted in the very moment it left
                self.release(turn.result().ticket.id)
            raise
        finally:
            del self._turns[request], self._waiting[request.ticket_id]

    def _turn_away(self, refusals: Iterable[Refusal]) -> None:
        for refused in refusals:
            turn = self._turns[refused.request]
            if not turn.done():
                turn.set_exception(refused.error)

    def _hand_over(self, grant: Grant) -> None:
        turn = self._turns[grant.request]
        if turn.done():  # cancelled, its task not yet run
            self.release(grant.ticket.id)
        else:
            turn.set_result(grant)

    def _set_timer(self) -> None:
        """Wakes up when the next unredeemed ticket expires."""
        due_ns = self.admission.fleet.next_expiry_ns
        if due_ns == self._timer_ns:
            return
        if self._timer:
            self._timer.cancel()
        self._timer, self._timer_ns = None, due_ns
        if due_ns is not None:
            delay_s = max(0, due_ns - self._clock()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer_ns = None
        for ticket_id in self.admission.fleet.expire(self._clock()):
            log.info("ticket_expired", ticket_id=ticket_id)
        self.settle()


def _released_early() -> Cancelled:
    return Cancelled("the ticket was released before it was granted", reason="TICKET_RELEASED")
