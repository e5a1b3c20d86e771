"""Tickets on their way back: nobody waits for them but the end of the process."""

from __future__ import annotations

import asyncio

import pytest

from services.common.errors import Unavailable
from services.common.ids import TicketId
from services.gateway.ports import Grant, TokenRequest
from services.gateway.ticket_returns import TicketReturns


class SlowScheduler:
    """Takes tickets back once its gate is open, or refuses to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.released: list[TicketId] = []

    async def grant(self, request: TokenRequest, ticket_id: TicketId, timeout_s: float | None) -> Grant:
        raise AssertionError

    async def release(self, ticket_id: TicketId, timeout_s: float) -> None:
        await self.gate.wait()
        if self.failure:
            raise self.failure
        self.released.append(ticket_id)


async def test_the_end_waits_for_returns_under_way() -> None:
    """Leaving the scope leaves no ticket behind, and does not lose the body's error."""
    scheduler = SlowScheduler()

    async def work() -> None:
        async with TicketReturns(scheduler) as returns:
            returns.give_back(TicketId("a"))
            returns.give_back(TicketId("b"))
            scheduler.gate.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert ["a", "b"] == scheduler.released


async def test_a_return_that_fails_is_left_to_expiry() -> None:
    """A scheduler that is away does no harm to the gateway."""
    scheduler = SlowScheduler()
    scheduler.failure = Unavailable("away")
    scheduler.gate.set()
    async with TicketReturns(scheduler) as returns:
        returns.give_back(TicketId("a"))
    assert [] == scheduler.released
