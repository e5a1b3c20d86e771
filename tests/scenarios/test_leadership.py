"""Several schedulers, of which one leads: whoever leaves, no request is lost and no byte is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from halogen.v1 import engine_pb2, scheduler_pb2, types_pb2
from halogen.v1.engine_pb2_grpc import EngineServiceStub
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.background import background
from services.common.client import Client
from services.common.registry import keys
from services.common.registry.records import SchedulerRecord
from services.common.registry.view import View
from services.common.rpc.client import connect
from services.common.rpc.status import from_rpc_error
from services.engine.loaded_model import ModelOnArena
from services.engine.ragged import Ragged
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

BLOCK_BYTES = 4 * 2 * 2 * 16 * 32 * 2  # stories: layers, K and V, kv heads, tokens, head size, bf16
PATIENCE_S = 60


@contextlib.asynccontextmanager
async def schedulers(system: Cluster) -> AsyncIterator[View[SchedulerRecord]]:
    assert system.registry is not None
    async with View(system.registry, keys.SCHEDULERS, SchedulerRecord) as view:
        yield view


async def until(view: View[SchedulerRecord], name: str, *, leads: bool) -> int:
    """Waits for a scheduler to register as leader, or as standby; its term."""
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            record = view.records.get(f"schedulers/{name}")
            if record and bool(record.term) is leads:
                return record.term
    raise AssertionError


async def occupancy(address: str) -> scheduler_pb2.GetOccupancyResponse:
    async with connect(address) as channel:
        return await SchedulerServiceStub(channel).GetOccupancy(scheduler_pb2.GetOccupancyRequest())


async def tickets(address: str, expected: int) -> scheduler_pb2.EngineOccupancy:
    """What one scheduler knows of the one engine, once it knows of so many tickets there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for engine in (await occupancy(address)).engines:
                if engine.arena_bytes and engine.tickets == expected:
                    return engine


class Load:
    """Callers that ask again and again, each without a second try of its client's."""

    def __init__(self, gateway: str, callers: int) -> None:
        self._gateway = gateway
        self._callers = callers
        self.answers = 0
        self._news = asyncio.Event()

    async def run(self) -> None:
        """For ever; raises what any caller meets."""
        async with Client(self._gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
            for seed in range(self._callers):
                group.create_task(self._ask(client, seed))

    async def _ask(self, client: Client, seed: int) -> None:
        while True:
            answer = client.generate(
                [3 + seed] * 20, max_tokens=12, temperature=0, ignore_eos=True, timeout_s=PATIENCE_S
            )
            assert 12 == len((await answer.complete()).token_ids)
            self.answers += 1
            self._news.set()

    async def more(self, answers: int) -> None:
        """Returns when so many further requests have been answered."""
        wanted = self.answers + answers
        async with asyncio.timeout(PATIENCE_S):
            while self.answers < wanted:
                self._news.clear()
                await self._news.wait()


async def test_a_rolling_restart_of_two_schedulers_loses_no_request(
    start: Start, stories: dict[str, Path]
) -> None:
    """Each leader is ended under load, with a queue: every request is answered at its first try.

    Fault injection: where SchedulerClient.grant raises every Unavailable, callers meet NOT_LEADER.
    """
    system: Cluster = await start("in_process", engine={"kv_arena_bytes": 4 * BLOCK_BYTES})
    assert system.another is not None
    await system.publish("stories", stories["stories-v1"])
    load = Load(system.gateway, callers=12)
    async with schedulers(system) as view, contextlib.AsyncExitStack() as scope, background(load.run()):
        await load.more(12)
        first = await scope.enter_async_context(contextlib.AsyncExitStack())
        await first.enter_async_context(system.another("scheduler", id="a"))
        await until(view, "a", leads=False)
        await system.end("scheduler")
        assert 2 == await until(view, "a", leads=True)
        await load.more(24)
        second = await scope.enter_async_context(system.another("scheduler", id="b"))
        await until(view, "b", leads=False)
        await first.aclose()
        assert 3 == await until(view, "b", leads=True)
        await load.more(24)
        assert (await occupancy(second)).peak_queued_requests > 0


async def test_the_next_leader_knows_every_live_ticket(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets of requests in the middle of their answers are in the ledger of a standby, and of the next leader.

    Fault injection: without the tickets of `Ledger.rebuild`, the standby that starts later counts none.
    """
    gate, steps = threading.Event(), asyncio.Event()
    loop, forward = asyncio.get_running_loop(), ModelOnArena.forward

    def held(self: ModelOnArena, step: Ragged) -> Any:
        loop.call_soon_threadsafe(steps.set)
        gate.wait()
        return forward(self, step)

    system: Cluster = await start("in_process")
    assert system.another is not None
    await system.publish("stories", stories["stories-v1"])
    monkeypatch.setattr(ModelOnArena, "forward", held)
    async with schedulers(system) as view, system.client() as client:
        answers = [
            asyncio.ensure_future(client.generate([5] * 40, max_tokens=8, ignore_eos=True).complete())
            for _ in range(3)
        ]
        try:
            await steps.wait()
            before = await tickets(system.scheduler, 3)
            async with system.another("scheduler", id="a") as standby:
                assert before.promised_bytes == (await tickets(standby, 3)).promised_bytes
                await system.end("scheduler")
                await until(view, "a", leads=True)
                assert before.promised_bytes == (await tickets(standby, 3)).promised_bytes
                gate.set()
                assert [8, 8, 8] == [len(each.token_ids) for each in await asyncio.gather(*answers)]
                assert 0 == (await tickets(standby, 0)).promised_bytes
        finally:
            gate.set()


async def test_a_ticket_of_a_leader_that_was_replaced_is_refused(
    start: Start, stories: dict[str, Path]
) -> None:
    """What the former leader granted is void once the engine has seen a ticket of the next one.

    Fault injection: without the comparison of terms in TicketGate.redeem the engine answers both.
    """
    system: Cluster = await start("in_process")
    assert system.another is not None
    published = await system.publish("stories", stories["stories-v1"])
    async with schedulers(system) as view, system.another("scheduler", id="a") as second:
        await until(view, "a", leads=False)
        old = await grant(system.scheduler, published.artifact_id)
        await system.end("scheduler")
        await until(view, "a", leads=True)
        new = await grant(second, published.artifact_id)
        assert (1, 2) == (old.term, new.term)
        assert 4 == await redeem(system.engine, new)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await redeem(system.engine, old)
        assert "TICKET_TERM_OVER" == from_rpc_error(refused.value).reason


async def grant(address: str, artifact_id: str) -> types_pb2.Ticket:
    request = scheduler_pb2.GrantTicketRequest(artifact_id=artifact_id, prompt_tokens=3, max_tokens=4)
    async with connect(address) as channel:
        return (await SchedulerServiceStub(channel).GrantTicket(request)).ticket


async def redeem(address: str, ticket: types_pb2.Ticket) -> int:
    """How many tokens come of it."""
    request = engine_pb2.GenerateTokensRequest(
        ticket=ticket,
        request_id=ticket.ticket_id,
        prompt_token_ids=[1, 2, 3],
        sampling=types_pb2.SamplingParams(
            temperature=0, top_k=0, top_p=1, seed=1, max_tokens=4, ignore_eos=True
        ),
    )
    async with connect(address) as channel:
        call = EngineServiceStub(channel).GenerateTokens(request)
        return sum([len(message.token_ids) async for message in call])
