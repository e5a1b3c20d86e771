"""Tickets on their way back."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog

from services.common.errors import HalogenError
from services.common.ids import TicketId
from services.gateway.ports import Scheduler

_RELEASE_S: Final = 2.0

log = structlog.get_logger()


class TicketReturns:
    """Gives tickets back in the background, so that neither an abort nor a cancelled request waits for it.

    Leaving the scope waits for the returns under way. One that fails is left to the ticket's expiry.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(None, None, None)  # what the body raised is not the group's affair

    def give_back(self, ticket_id: TicketId) -> None:
        """Begins to return a ticket that was not redeemed; one that was is no error."""
        self._group.create_task(self._release(ticket_id))

    async def _release(self, ticket_id: TicketId) -> None:
        try:
            await self._scheduler.release(ticket_id, _RELEASE_S)
        except HalogenError as failure:
            log.warning("ticket_return_failed", ticket_id=ticket_id, error=str(failure))
