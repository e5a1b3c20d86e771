"""The scheduler on the wire: grants on a live engine, and what becomes of it when things break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2

from halogen.v1 import scheduler_pb2 as pb
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.common.ids import (
    ArtifactId,
    InstanceId,
    TicketId,
)
from services.common.ticket import Ticket, TicketSigner
from services.scheduler import engines
from tests.unit.scheduler.asking import ask, health, occupancy, refusal, until
from tests.unit.scheduler.builders import ARTIFACT

if TYPE_CHECKING:
    from halogen.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub as Scheduler
    from tests.unit.scheduler.conftest import FakeEngine, Scheduling

    MakeEngine = Callable[..., FakeEngine]


async def test_a_ticket_is_signed_and_names_its_engine(
    scheduler: Scheduler, make_engine: MakeEngine, key_file: Path
) -> None:
    """What the gateway gets is what the engine can check."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    answer = await scheduler.GrantTicket(ask(3))
    ticket = Ticket(
        id=TicketId(answer.ticket.ticket_id),
        engine_instance_id=InstanceId(engine.instance_id),
        artifact_id=ArtifactId(ARTIFACT),
        reserved_bytes=300,
        term=1,
        expire_time_ns=answer.ticket.expire_time.ToNanoseconds(),
    )
    TicketSigner.from_file(key_file).check(ticket, answer.ticket.mac)
    assert ("e", f"127.0.0.1:{engine._port}") == (answer.engine_id, answer.engine_address)


@pytest.mark.parametrize("field", ["artifact_id", "prompt_tokens", "max_tokens"])
async def test_a_missing_field_is_invalid(scheduler: Scheduler, field: str) -> None:
    """Absent reads as zero on the wire, and the message names the field."""
    request = ask()
    request.ClearField(field)
    error = await refusal(scheduler.GrantTicket(request))
    assert field in error.message


async def test_s_b1_a_prompt_larger_than_the_arena_fails_fast_and_the_next_completes(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """49 blocks of 16: a prompt of 1002 tokens gets INVALID_ARGUMENT at once, one of 10 gets its ticket.

    Turns red when: `refusal` begins with `return None`, so that the long prompt waits for ever.
    """
    engine = make_engine(49)
    await engine.start()
    await engine.watched.wait()
    long_one = pb.GrantTicketRequest(artifact_id=ARTIFACT, prompt_tokens=1002, max_tokens=16)
    async with asyncio.timeout(5):
        error = await refusal(scheduler.GrantTicket(long_one))
        assert "PROMPT_TOO_LARGE" == error.reason
        assert (await scheduler.GrantTicket(ask())).ticket.ticket_id
    assert 0 == (await occupancy(scheduler)).queued_requests


async def test_a_request_waits_its_turn(scheduler: Scheduler, make_engine: MakeEngine) -> None:
    """The call stays open while the arena is full, and answers when the engine has closed a ticket."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    first = await scheduler.GrantTicket(ask(10))
    waiting = scheduler.GrantTicket(ask(2))
    state = await until(scheduler, lambda state: state.queued_requests == 1)
    assert (10, 1, 1.0) == (
        state.queued_prompt_tokens,
        state.peak_queued_requests,
        state.engines[0].peak_occupancy,
    )
    engine.redeem(first.ticket)
    engine.close(first.ticket.ticket_id)
    assert 200 == (await waiting).ticket.reserved_bytes


async def test_a_caller_that_cancels_leaves_the_queue_at_once(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """Cancelled or out of time, it is queued no more and holds nothing."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    await scheduler.GrantTicket(ask(10))
    waiting = scheduler.GrantTicket(ask())
    await until(scheduler, lambda state: state.queued_requests == 1)
    waiting.cancel()
    await until(scheduler, lambda state: state.queued_requests == 0)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await scheduler.GrantTicket(ask(), timeout=0.05)
    assert grpc.StatusCode.DEADLINE_EXCEEDED is failure.value.code()
    state = await until(scheduler, lambda state: state.queued_requests == 0)
    assert 1 == state.engines[0].tickets


async def test_releasing_is_idempotent_and_makes_room(scheduler: Scheduler, make_engine: MakeEngine) -> None:
    """The next in line gets the bytes; a second release of the same ticket is no error."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    first = await scheduler.GrantTicket(ask(10))
    waiting = scheduler.GrantTicket(ask(10))
    await until(scheduler, lambda state: state.queued_requests == 1)
    for _ in range(2):
        await scheduler.ReleaseTicket(pb.ReleaseTicketRequest(ticket_id=first.ticket.ticket_id))
    assert (await waiting).ticket.ticket_id
    await scheduler.ReleaseTicket(pb.ReleaseTicketRequest(ticket_id="unknown"))


async def test_a_forgotten_ticket_expires(scheduling: Scheduling, make_engine: MakeEngine) -> None:
    """A ticket that nobody redeems gives its bytes to the next in line after its lifetime."""
    engine = make_engine()
    await engine.start()
    async with scheduling(ticket_ttl_s=0.05) as channel:
        scheduler = SchedulerServiceStub(channel)
        await engine.watched.wait()
        await scheduler.GrantTicket(ask(10))
        assert (await scheduler.GrantTicket(ask(10))).ticket.ticket_id


async def test_a_full_queue_answers_with_pushback(scheduling: Scheduling, make_engine: MakeEngine) -> None:
    """RESOURCE_EXHAUSTED tells when to come back."""
    engine = make_engine()
    await engine.start()
    async with scheduling(queue_requests=1) as channel:
        scheduler = SchedulerServiceStub(channel)
        await engine.watched.wait()
        await scheduler.GrantTicket(ask(10))
        waiting = scheduler.GrantTicket(ask())
        await until(scheduler, lambda state: state.queued_requests == 1)
        error = await refusal(scheduler.GrantTicket(ask()))
        assert ("QUEUE_FULL", 1.0) == (error.reason, error.retry_after_s)
        waiting.cancel()


async def test_without_an_engine_the_answer_is_unavailable_at_once(scheduler: Scheduler) -> None:
    """Never a hang."""
    error = await refusal(scheduler.GrantTicket(ask()))
    assert ("NO_ENGINE", 1.0) == (error.reason, error.retry_after_s)


async def test_a_restarted_scheduler_adopts_the_engine_s_tickets(
    scheduling: Scheduling, make_engine: MakeEngine
) -> None:
    """It stores nothing: the snapshot tells what its predecessor had promised."""
    engine = make_engine()
    await engine.start()
    async with scheduling() as channel:
        await engine.watched.wait()
        ticket = (await SchedulerServiceStub(channel).GrantTicket(ask(8))).ticket
        engine.redeem(ticket)
    engine.watched.clear()
    async with scheduling() as channel:
        scheduler = SchedulerServiceStub(channel)
        await engine.watched.wait()
        state = await until(scheduler, lambda state: state.engines[0].tickets == 1)
        assert 800 == state.engines[0].promised_bytes
        waiting = scheduler.GrantTicket(ask(3))
        await until(scheduler, lambda state: state.queued_requests == 1)
        engine.close(ticket.ticket_id)
        assert 300 == (await waiting).ticket.reserved_bytes


async def test_a_broken_stream_is_opened_anew_and_the_ledger_rebuilt(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """What changed during the break is in the next snapshot; those who wait keep their place."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    ticket = (await scheduler.GrantTicket(ask(10))).ticket
    engine.redeem(ticket)
    waiting = scheduler.GrantTicket(ask(10))
    await until(scheduler, lambda state: state.queued_requests == 1)
    engine.break_streams()
    engine._feeds.clear()
    engine.close(ticket.ticket_id)
    assert (await waiting).ticket.ticket_id


async def test_a_second_snapshot_on_a_stream_replaces_the_first(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """An engine whose watcher fell behind begins anew: what it does not name any more is closed."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    ticket = (await scheduler.GrantTicket(ask(10))).ticket
    engine.redeem(ticket)
    waiting = scheduler.GrantTicket(ask(10))
    await until(scheduler, lambda state: state.queued_requests == 1)
    engine.tickets.clear()
    engine.begin_anew()
    assert (await waiting).ticket.ticket_id


async def until_heard(scheduler: Scheduler, *instances: str) -> pb.GetOccupancyResponse:
    """Returns when these are the instances whose word on their memory is at hand."""

    def reached(state: pb.GetOccupancyResponse) -> bool:
        return sorted(instances) == sorted(it.engine_instance_id for it in state.engines if it.arena_bytes)

    return await until(scheduler, reached)


async def test_an_engine_restarted_is_a_new_place(scheduler: Scheduler, make_engine: MakeEngine) -> None:
    """Tickets of the dead instance are forgotten, and new ones name its successor."""
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    before = (await scheduler.GrantTicket(ask(10))).ticket.engine_instance_id
    waiting = scheduler.GrantTicket(ask(10))
    await until(scheduler, lambda state: state.queued_requests == 1)
    await engine.kill()
    await engine.start()
    after = (await waiting).ticket.engine_instance_id
    assert ("e-1", "e-2") == (before, after)
    state = await until(scheduler, lambda state: len(state.engines) == 1)
    assert "e-2" == state.engines[0].engine_instance_id


async def test_an_engine_restarted_while_the_registry_is_away_is_granted_on(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """Its word at the address that is registered for it is enough. What else the registry says meanwhile changes nothing,
    and its own record in the end counts no ticket twice.

    Fault injection: turns red when `_listen` refuses every other instance, when `_read` takes records as they are (the
    old instance comes back), or when `_note_restart` notes who restarted rather than whose the record is (the second restart
    is not found).
    """
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    assert "e-1" == (await scheduler.GrantTicket(ask(10))).ticket.engine_instance_id
    for name in ("e-2", "e-3"):
        await engine.kill()
        await engine.start(registers=False)
        state = await until_heard(scheduler, name)
        assert 0 == state.engines[0].promised_bytes
    granted = await scheduler.GrantTicket(ask(4))
    assert ("e-3", f"127.0.0.1:{engine._port}") == (granted.ticket.engine_instance_id, granted.engine_address)
    engine.redeem(granted.ticket)
    other = make_engine(name="f")
    await other.start()
    await until_heard(scheduler, "e-3", "f-1")
    await engine.register()
    await other.deregister()
    await other.kill()
    state = await until(scheduler, lambda state: len(state.engines) == 1)
    assert ("e-3", 400, 1) == (
        state.engines[0].engine_instance_id,
        state.engines[0].promised_bytes,
        state.engines[0].tickets,
    )


async def test_another_engine_at_a_known_address_is_not_granted_on(
    scheduler: Scheduler, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes by a port that another engine had is not what the registry says.

    Fault injection: turns red when `_note_restart` does not compare the engines' ids.
    """
    monkeypatch.setattr(engines, "LOST_AFTER_S", 0.1)
    engine, foreign = make_engine(), make_engine(name="f")
    await engine.start()
    await engine.watched.wait()
    await engine.kill()
    await foreign.start(at=engine._port, registers=False)
    await foreign.watched.wait()
    waiting = scheduler.GrantTicket(ask())
    assert "NO_ENGINE" == (await refusal(waiting)).reason
    assert ["e-1"] == [each.engine_instance_id for each in (await occupancy(scheduler)).engines]


async def test_an_engine_whose_lease_ended_serves_on_while_its_stream_lives(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """The registry may lose an engine that is well; when its stream ends too, it is gone."""
    engine = make_engine()
    await engine.start()
    await until(scheduler, lambda state: any(each.arena_bytes for each in state.engines))
    await engine.deregister()
    assert (await scheduler.GrantTicket(ask())).ticket.ticket_id
    await engine.kill()
    await until(scheduler, lambda state: not state.engines)
    assert "NO_ENGINE" == (await refusal(scheduler.GrantTicket(ask()))).reason


async def test_nobody_waits_long_for_an_engine_that_is_dead(
    scheduler: Scheduler, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record stands until its lease ends; those who wait hear NO_ENGINE well before."""
    monkeypatch.setattr(engines, "LOST_AFTER_S", 0.1)
    engine = make_engine()
    await engine.start()
    await engine.watched.wait()
    await scheduler.GrantTicket(ask(10))
    waiting = scheduler.GrantTicket(ask(10))
    await until(scheduler, lambda state: state.queued_requests == 1)
    await engine.kill()
    assert "NO_ENGINE" == (await refusal(waiting)).reason
    assert "NO_ENGINE" == (await refusal(scheduler.GrantTicket(ask()))).reason


async def test_two_engines_share_the_work(scheduler: Scheduler, make_engine: MakeEngine) -> None:
    """Grants go to the less occupied of two."""
    for engine in (make_engine(10, name) for name in ("a", "b")):
        await engine.start()
        await engine.watched.wait()
    await until(scheduler, lambda state: len([e for e in state.engines if e.arena_bytes]) == 2)
    assert ["a", "b"] == [(await scheduler.GrantTicket(ask(2))).engine_id for _ in range(2)]


async def test_it_is_ready_while_an_engine_is_heard(scheduling: Scheduling, make_engine: MakeEngine) -> None:
    """Health follows the engines: NOT_SERVING before the first snapshot and after the last stream's end."""
    engine = make_engine()
    async with scheduling() as channel, health(channel) as become:
        await become(health_pb2.HealthCheckResponse.NOT_SERVING)
        await engine.start()
        await become(health_pb2.HealthCheckResponse.SERVING)
        await engine.kill()
        await become(health_pb2.HealthCheckResponse.NOT_SERVING)


async def test_64_callers_fill_the_arena_and_all_get_their_turn(
    scheduler: Scheduler, make_engine: MakeEngine
) -> None:
    """Sixty-four concurrent requests on an arena for ten: occupancy passes 0.90, the queue is used, none is lost."""
    engine = make_engine(40)
    await engine.start()
    await engine.watched.wait()

    full = asyncio.Event()

    async def one() -> None:
        ticket = (await scheduler.GrantTicket(ask(4))).ticket
        engine.redeem(ticket)
        if len(engine.tickets) == 10:
            full.set()
        await full.wait()
        engine.close(ticket.ticket_id)

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(one())
    state = await until(scheduler, lambda state: state.engines[0].tickets == 0)
    assert state.engines[0].peak_occupancy >= 0.90
    assert state.peak_queued_requests > 0
    assert (0, 0, 0) == (
        state.engines[0].promised_bytes,
        state.engines[0].unstarted_prefill_tokens,
        state.queued_requests,
    )
