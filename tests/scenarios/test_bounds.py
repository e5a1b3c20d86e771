"""Bounds that an operator sets on engines: kept, known before an engine is asked, and no reason to fail a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.common.client import Client
from services.common.errors import InvalidRequest
from services.common.ids import TicketId
from services.engine.engine import Engine
from services.engine.occupancy import LiveTicket, Occupancy
from tests.brake import Brake
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]


async def queued(system: Cluster) -> int:
    return (await system.occupancy()).queued_requests


async def test_requests_over_what_an_engine_takes_at_once_wait_their_turn(
    start: Start, stories: dict[str, Path], brake: Brake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve at once on an engine that takes two: never a third in it, none fails, and all answer as alone.

    Fault injection: turns red when the scheduler's Ledger.can_grant looks at bytes alone.
    """
    live: set[TicketId] = set()
    most = 0
    open_, close = Occupancy.open, Occupancy.close

    def opened(books: Occupancy, ticket: LiveTicket) -> None:
        nonlocal most
        open_(books, ticket)
        live.add(ticket.id)
        most = max(most, len(live))

    def closed(books: Occupancy, ticket_id: TicketId) -> None:
        close(books, ticket_id)
        live.discard(ticket_id)

    monkeypatch.setattr(Occupancy, "open", opened)
    monkeypatch.setattr(Occupancy, "close", closed)
    system: Cluster = await start("in_process", engine={"max_concurrent_requests": 2})
    await system.publish("stories", stories["stories-v1"])
    async with Client(system.gateway, max_tries=1) as client:
        with brake.held():
            asked = [client.generate("Once", max_tokens=8, temperature=0, timeout_s=240) for _ in range(12)]
            calls = [asyncio.ensure_future(each.complete()) for each in asked]
            async with asyncio.timeout(60):
                while not any(call.done() for call in calls) and await queued(system) < 10:
                    pass
        answers = await asyncio.gather(*calls)
    assert 1 == len({answer.token_ids for answer in answers})
    assert 2 == most
    assert set() == live


async def test_the_longest_context_is_known_before_an_engine_is_asked(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's --max-model-len: told to clients, room for an answer whose length nobody says, a clear refusal.

    Fault injection: turns red when Contexts.tokens gives the model's own.
    """
    system: Cluster = await start("in_process", engine={"max_model_len": 48})
    await system.publish("stories", stories["stories-v1"])
    seen: list[str] = []
    run = Engine.run

    def counted(engine: Engine, lender: Any, request: Any, *more: Any) -> Any:
        seen.append(request.id)
        return run(engine, lender, request, *more)

    async with system.client() as client:
        monkeypatch.setattr(Engine, "run", counted)
        assert [48] == [each.max_context_tokens for each in await client.list_models()]
        answer = await client.generate([5] * 40, ignore_eos=True, timeout_s=60).complete()
        assert (8, 1) == (len(answer.token_ids), len(seen))
        with pytest.raises(InvalidRequest, match="48 tokens") as refused:
            await client.generate([5] * 40, max_tokens=9, timeout_s=60).complete()
    assert ("CONTEXT_EXCEEDED", 1) == (refused.value.reason, len(seen))
