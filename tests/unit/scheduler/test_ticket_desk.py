"""Waiting for a ticket: turns, leaving early, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from services.common.errors import AlreadyExists, Cancelled, HalogenError, InvalidRequest, Unavailable
from services.common.ids import TicketId
from services.scheduler.admission import Admission, Grant
from services.scheduler.engine_instance import Contact, EngineInstance
from services.scheduler.request import TicketRequest
from services.scheduler.ticket_desk import TicketDesk
from tests.unit.scheduler.builders import admission, blocks, close_all, engine, request


@pytest.fixture
def admitting() -> Admission:
    return admission()


@pytest.fixture
def place(admitting: Admission) -> EngineInstance:
    """An engine of ten blocks."""
    return engine(admitting.fleet, blocks=10)


@pytest.fixture
def desk(admitting: Admission) -> Iterator[TicketDesk]:
    with TicketDesk(admitting) as desk:
        yield desk
    admitting.check()


async def queued(group: asyncio.TaskGroup, desk: TicketDesk, wanted: TicketRequest) -> asyncio.Task[Grant]:
    """A caller that waits in the queue."""
    task = group.create_task(desk.obtain(wanted))
    await asyncio.sleep(0)
    assert wanted in desk.admission.queue
    return task


async def test_a_caller_gets_its_grant_when_room_appears(desk: TicketDesk, place: EngineInstance) -> None:
    """It waits while the arena is full and goes on when the engine has closed a ticket."""
    await desk.obtain(blocks(10))
    async with asyncio.TaskGroup() as group:
        task = await queued(group, desk, request(ticket_id="mine"))
        close_all(place)
        desk.settle()
    assert "mine" == task.result().ticket.id


async def test_a_ticket_that_is_waited_for_can_be_released(desk: TicketDesk, place: EngineInstance) -> None:
    """Its caller leaves the queue; the release may come by another way than the call."""
    await desk.obtain(blocks(10))
    wanted = request(ticket_id="mine")
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the group ends with its task
        async with asyncio.TaskGroup() as group:
            await queued(group, desk, wanted)
            desk.release(TicketId("mine"))
    assert [Cancelled] == [type(failure) for failure in caught.value.exceptions]
    assert (0, 1000) == (len(desk.admission.queue), place.ledger.promised_bytes)


async def test_a_release_may_overtake_the_question(desk: TicketDesk, place: EngineInstance) -> None:
    """A ticket that is released before it is asked for is never granted: nobody would redeem it.

    Turns red when: TicketDesk.release forgets ids that it does not know.
    """
    desk.release(TicketId("mine"))
    with pytest.raises(Cancelled):
        await desk.obtain(request(ticket_id="mine"))
    assert 0 == place.ledger.promised_bytes


async def test_a_tickets_id_is_its_own(desk: TicketDesk, place: EngineInstance) -> None:
    """An id that is granted, or waited for, cannot be asked for again."""
    await desk.obtain(blocks(10))
    async with asyncio.TaskGroup() as group:
        await queued(group, desk, request(ticket_id="mine"))
        for taken in ("mine", next(iter(place.ledger.promises))):
            with pytest.raises(AlreadyExists):
                await desk.obtain(request(ticket_id=taken))
        close_all(place)
        desk.settle()


async def test_a_request_that_can_never_work_does_not_wait(desk: TicketDesk, place: EngineInstance) -> None:
    """The refusal comes at once, even while others wait."""
    await desk.obtain(blocks(10))
    async with asyncio.TaskGroup() as group:
        task = await queued(group, desk, request())
        with pytest.raises(InvalidRequest):
            await desk.obtain(blocks(11))
        close_all(place)
        desk.settle()
    assert task.done()


@pytest.mark.parametrize(("wanted", "reason"), [(blocks(11), "PROMPT_TOO_LARGE"), (blocks(1), "QUEUE_FULL")])
async def test_s_b5_who_is_refused_waits_for_nobody_and_leaves_nothing(
    wanted: TicketRequest, reason: str
) -> None:
    """S-B5: a hundred are told so before anything is waited for, and whoever waits keeps its turn.

    Fault injection: turns red when Admission.admit pushes before it looks whether there is room, or TicketDesk.obtain
    waits its turn first.
    """
    admitting = admission(max_requests=1)
    place = engine(admitting.fleet, blocks=10)
    with TicketDesk(admitting) as desk:
        await desk.obtain(blocks(10))
        async with asyncio.TaskGroup() as group:
            task = await queued(group, desk, request())
            for _ in range(100):
                with pytest.raises(HalogenError) as refused:
                    desk.obtain(wanted).send(None)
                assert reason == refused.value.reason
            assert (1, 1, 1) == (len(admitting.queue), len(desk._turns), len(desk._waiting))
            assert (1, 1000) == (len(place.ledger.promises), place.ledger.promised_bytes)
            close_all(place)
            desk.settle()
        assert task.done()
    admitting.check()


async def test_a_caller_that_leaves_lets_the_next_one_go(
    desk: TicketDesk, place: EngineInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled head, which lets nobody pass any more, leaves the queue at once; who stood behind it is granted."""
    monkeypatch.setattr("services.common.waiting_line.PATIENCE", 0)
    await desk.obtain(blocks(5))
    async with asyncio.TaskGroup() as group:
        head = await queued(group, desk, blocks(8))
        behind = await queued(group, desk, blocks(1))
        head.cancel()
    assert head.cancelled()
    assert 100 == behind.result().ticket.reserved_bytes


async def test_a_grant_to_one_who_has_just_left_is_returned(desk: TicketDesk, place: EngineInstance) -> None:
    """Granted and cancelled in the same moment, in either order: nothing stays promised."""
    for cancel_first in (True, False):
        await desk.obtain(blocks(10))
        async with asyncio.TaskGroup() as group:
            task = await queued(group, desk, request())
            close_all(place)
            if cancel_first:
                task.cancel()
            desk.settle()
            task.cancel()
        assert task.cancelled()
        assert 0 == place.ledger.promised_bytes


async def test_a_deadline_ends_the_wait(desk: TicketDesk, place: EngineInstance) -> None:
    """A caller whose time is over leaves nothing in the queue."""
    await desk.obtain(blocks(10))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await desk.obtain(request())
    assert 0 == len(desk.admission.queue)


async def test_those_who_wait_hear_that_no_engine_is_left(desk: TicketDesk, place: EngineInstance) -> None:
    """The wait ends with Unavailable, not with a hang."""
    await desk.obtain(blocks(10))

    async def wait() -> None:
        with pytest.raises(Unavailable):
            await desk.obtain(request())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        place.advance(Contact.SILENT)
        desk.settle(engines_changed=True)
        await asyncio.sleep(0)
        assert not waiting.done()
        place.advance(Contact.LOST)
        desk.settle(engines_changed=True)


async def test_an_unredeemed_ticket_expires_by_itself() -> None:
    """At the ticket's end its bytes go to the next in line, and nothing else has to happen."""
    admitting = admission(ttl_ns=10_000_000)
    place = engine(admitting.fleet, blocks=10)
    with TicketDesk(admitting) as desk:
        await desk.obtain(blocks(10))
        grant = await desk.obtain(request(ticket_id="mine"))
    assert "mine" == grant.ticket.id
    assert 100 == place.ledger.promised_bytes


async def test_a_release_is_idempotent(desk: TicketDesk, place: EngineInstance) -> None:
    """A ticket is returned once; returning it again, or an unknown one, is no error."""
    grant = await desk.obtain(blocks(10))
    for _ in range(2):
        desk.release(grant.ticket.id)
    assert 0 == place.ledger.promised_bytes


async def test_a_closed_desk_leaves_no_timer(admitting: Admission, place: EngineInstance) -> None:
    """The timer of an outstanding ticket ends with the desk."""
    with TicketDesk(admitting) as desk:
        await desk.obtain(request())
        timer = desk._timer
    assert timer is not None
    assert timer.cancelled()
