"""One of several schedulers leads, as the wire and the registry show it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from halogen.v1 import scheduler_pb2 as pb
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.ids import Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.memory import MemoryStore
from services.common.registry.records import GatewayRecord, SchedulerRecord, Serving, Target
from services.common.registry.view import View
from tests.unit.scheduler.asking import ask, health, occupancy, refusal, until
from tests.unit.scheduler.builders import ARTIFACT

if TYPE_CHECKING:
    from tests.unit.scheduler.conftest import FakeEngine, Scheduling

    MakeEngine = Callable[..., FakeEngine]


async def test_it_registers_itself(scheduling: Scheduling, registry: MemoryStore) -> None:
    """schedulers/{id} is there while it runs and gone afterwards; it says in which term it leads."""
    async with View(registry, keys.SCHEDULERS, SchedulerRecord) as view:
        async with scheduling():
            await until_registered(view, "s", 1)
        assert await registry.get("schedulers/s") is None


async def until_registered(view: View[SchedulerRecord], name: str, term: int) -> None:
    """Returns when the scheduler of that name says that it leads in `term`; 0 stands for a standby."""
    async with asyncio.timeout(10), contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            if (record := view.records.get(f"schedulers/{name}")) and record.term == term:
                return


async def test_a_standby_knows_the_tickets_and_grants_none(
    scheduling: Scheduling, make_engine: MakeEngine, registry: MemoryStore
) -> None:
    """It follows the engine as the leader does, answers NOT_LEADER at once, and grants as soon as it leads."""
    engine = make_engine()
    await engine.start()
    async with contextlib.AsyncExitStack() as scope:
        view = await scope.enter_async_context(View(registry, keys.SCHEDULERS, SchedulerRecord))
        async with scheduling(id="a") as first:
            await until_registered(view, "a", 1)
            second = SchedulerServiceStub(await scope.enter_async_context(scheduling(id="b")))
            await until_registered(view, "b", 0)
            engine.redeem((await SchedulerServiceStub(first).GrantTicket(ask(8))).ticket)
            state = await until(second, lambda state: any(each.tickets for each in state.engines))
            assert 800 == state.engines[0].promised_bytes
            error = await refusal(second.GrantTicket(ask()))
            assert ("NOT_LEADER", 0.1) == (error.reason, error.retry_after_s)
        await until_registered(view, "b", 2)
        assert (2, 200) == granted(await second.GrantTicket(ask(2)))


def granted(answer: pb.GrantTicketResponse) -> tuple[int, int]:
    return answer.ticket.term, answer.ticket.reserved_bytes


async def test_who_waits_at_a_leader_that_resigns_is_sent_to_the_next(
    scheduling: Scheduling, make_engine: MakeEngine, registry: MemoryStore
) -> None:
    """Its queue is emptied with NOT_LEADER, while it still answers."""
    engine = make_engine()
    await engine.start()
    async with scheduling(drain_s=5) as channel:
        scheduler = SchedulerServiceStub(channel)
        await engine.watched.wait()
        await scheduler.GrantTicket(ask(10))
        waiting = scheduler.GrantTicket(ask(2))
        await until(scheduler, lambda state: state.queued_requests == 1)
        await take_over(registry, term=2)
        assert "NOT_LEADER" == (await refusal(waiting)).reason
        assert 0 == (await occupancy(scheduler)).queued_requests


async def take_over(registry: MemoryStore, term: int) -> None:
    """Another leads from now on, whatever the leader of the day thinks."""
    leader = LeaderRecord(id=ProcessId("z"), instance_id=InstanceId("z-1"), address="z:1", term=term)
    await registry.put(keys.SCHEDULER_LEADER, leader.encode())


async def test_a_standby_writes_nothing(
    scheduling: Scheduling, registry: MemoryStore, make_engine: MakeEngine
) -> None:
    """What is due is left to the leader; who comes to lead writes it first thing."""
    await take_over(registry, term=7)
    target = Target(revision=Revision(1), artifact_id=ARTIFACT, who="w", why="y")
    await registry.put(keys.target(ModelName("m"), Cohort.STABLE), target.encode())
    gateway = GatewayRecord(
        id=ProcessId("g"),
        instance_id=InstanceId("g-1"),
        address="x:1",
        host="h",
        start_time="t",
        artifact_ids=(ARTIFACT,),
    )
    await registry.put(keys.gateway(gateway.id), gateway.encode())
    await make_engine().start()
    async with View(registry, keys.SERVING, Serving) as serving, scheduling() as channel:
        async with health(channel) as become:
            await become(health_pb2.HealthCheckResponse.SERVING)
        assert {} == serving.records
        await registry.delete(keys.SCHEDULER_LEADER)
        async with asyncio.timeout(10), contextlib.aclosing(serving.changes()) as changes:
            while not serving.records:
                await anext(changes)
