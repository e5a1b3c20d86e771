"""Who is granted, who waits, who is refused."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import HalogenError, InvalidRequest, Overloaded, Unavailable
from services.common.ids import Cohort, ModelName, Revision
from services.common.no_engine import NoEngine
from services.common.registry.records import GenerationState, Served, Serving
from services.common.waiting_line import PATIENCE
from services.scheduler.admission import Admission, Grant
from services.scheduler.engine_instance import Contact
from services.scheduler.occupancy import Delta
from services.scheduler.request import RoutedBy, TicketRequest
from tests.unit.scheduler.builders import (
    ARTIFACT,
    OTHER,
    SERVING_KEY,
    TTL_NS,
    admission,
    blocks,
    close_all,
    engine,
    engine_record,
    generation,
    live,
    request,
    resident,
    standing,
    start_prefill,
)

BY_REVISION_1 = RoutedBy(ModelName("m"), Cohort.STABLE, Revision(1))


def refused(admitting: Admission, wanted: TicketRequest) -> HalogenError:
    with pytest.raises(HalogenError) as failure:
        admitting.admit(wanted, 0)
    return failure.value


def admitted(admitting: Admission, wanted: TicketRequest) -> Grant:
    grant = admitting.admit(wanted, 0)
    assert grant is not None
    return grant


def test_a_request_that_fits_is_granted_at_once() -> None:
    """The ticket names instance, artifact, bytes, term and end; the grant says where to go."""
    admitting = admission()
    place = engine(admitting.fleet)
    wanted = blocks(3)
    grant = admitting.admit(wanted, 1_000)
    assert grant is not None
    ticket = grant.ticket
    assert (wanted.ticket_id, "e-1", ARTIFACT, 300) == (
        ticket.id,
        ticket.engine_instance_id,
        ticket.artifact_id,
        ticket.reserved_bytes,
    )
    assert (1, 1_000 + TTL_NS) == (ticket.term, ticket.expire_time_ns)
    assert (wanted, "e", "e:1") == (grant.request, grant.engine_id, grant.engine_address)
    assert 300 == place.ledger.promised_bytes


def test_requests_over_what_an_engine_takes_at_once_wait() -> None:
    """However much memory there is: a ticket counts from its grant until the engine closes it; another engine helps.

    Fault injection: turns red when Ledger.can_grant looks at bytes alone.
    """
    admitting = admission()
    place = engine(admitting.fleet, max_tickets=2)
    first, _ = admitted(admitting, blocks(1)), admitted(admitting, blocks(1))
    waits = [blocks(1), blocks(1)]
    assert [None, None] == [admitting.admit(each, 0) for each in waits]
    place.follow(Delta(tickets=(live(first.ticket.id, started=True),)))
    assert [] == admitting.decide(0)
    place.follow(Delta(closed=(first.ticket.id,)))
    assert waits[:1] == [grant.request for grant in admitting.decide(0)]
    engine(admitting.fleet, "other", max_tickets=1)
    assert [(waits[1], "other")] == [(grant.request, grant.engine_id) for grant in admitting.decide(0)]


def test_small_ones_pass_a_large_one_that_waits_until_it_lets_no_more_pass() -> None:
    """Whether they have just come or wait themselves; who needs as much as the large one stays behind it.

    Fault injection: turns red when `admit` lets nobody pass, or does not note who has passed; or `decide` only looks at
    the first.
    """
    admitting = admission()
    place = engine(admitting.fleet, blocks=100)
    admitted(admitting, blocks(60))
    large, alike = blocks(50), blocks(50)
    assert [None, None] == [admitting.admit(each, 0) for each in (large, alike)]
    passed = []
    while grant := admitting.admit(small := blocks(10), 0):
        passed.append(grant)
        if len(passed) % 2 == 0:  # later ones wait for those before them
            place.follow(Delta(closed=tuple(each.ticket.id for each in passed[-2:])))
    assert PATIENCE * (50 * 16 + 1) // (10 * 16 + 1) == len(passed)
    assert [] == admitting.decide(0)
    close_all(place)
    assert [large, alike] == [grant.request for grant in admitting.decide(0)]
    close_all(place)
    assert [small] == [grant.request for grant in admitting.decide(0)]


def test_whoever_waits_passes_as_well() -> None:
    """Room for the small one comes first."""
    admitting = admission()
    place = engine(admitting.fleet, blocks=100)
    admitted(admitting, blocks(50))
    second = admitted(admitting, blocks(35))
    large, small = blocks(60), blocks(20)
    assert [None, None] == [admitting.admit(each, 0) for each in (large, small)]
    place.follow(Delta(closed=(second.ticket.id,)))
    assert [small] == [grant.request for grant in admitting.decide(0)]


def test_a_request_passes_by_what_is_expected_of_its_answer() -> None:
    """Whatever it might need at most: memory is promised for what is expected.

    Fault injection: turns red when `Admission._need_tokens` takes the worst case.
    """
    admitting = admission()
    expecting = dataclasses.replace(resident(), expected_answer_tokens=16)
    engine(admitting.fleet, blocks=200, tickets=(live("x", 165, started=True),), residents=[expecting])
    assert admitting.admit(request(600, 100), 0) is None
    admitted(admitting, request(20, 2000))


def test_another_artifact_is_not_held_up() -> None:
    """A head that waits blocks its own artifact's line only."""
    admitting = admission()
    engine(admitting.fleet, "a", blocks=10)
    engine(admitting.fleet, "b", residents=[resident(OTHER)])
    admitted(admitting, blocks(8))
    assert admitting.admit(blocks(5), 0) is None
    admitted(admitting, blocks(5, artifact=OTHER))


def test_a_latecomer_does_not_pass_those_who_wait() -> None:
    """When room appears, the queue goes before a request that has just come."""
    admitting = admission()
    place = engine(admitting.fleet, blocks=10)
    admitted(admitting, blocks(8))
    first, late = blocks(8), blocks(8)
    assert admitting.admit(first, 0) is None
    close_all(place)
    assert admitting.admit(late, 0) is None
    assert [first] == [grant.request for grant in admitting.decide(0)]


def test_one_decision_grants_as_many_as_may_begin() -> None:
    """Unstarted prefill bounds how many go at once; the rest go as the first begin."""
    admitting = admission(unstarted_tokens=100)
    place = engine(admitting.fleet, blocks=1000)
    for _ in range(10):
        admitting.admit(request(40), 0)
    assert (2, 8) == (len(place.ledger.promises), len(admitting.queue))
    start_prefill(place)
    assert 2 == len(admitting.decide(0))
    assert 6 == len(admitting.queue)


def test_requests_spread_over_engines() -> None:
    """Each grant goes to the engine that is then the least occupied."""
    admitting = admission()
    for name in ("a", "b"):
        engine(admitting.fleet, name)
    assert ["a", "b", "a", "b"] == [admitted(admitting, request()).engine_id for _ in range(4)]


def test_above_the_hard_watermark_everybody_waits_until_its_release() -> None:
    """Grants may carry the arena beyond 0.90; then none is given before occupancy is below 0.85."""
    admitting = admission()
    place = engine(admitting.fleet, blocks=100)
    _, second, third = (admitted(admitting, blocks(count)) for count in (80, 6, 5))
    start_prefill(place)
    assert admitting.admit(blocks(1), 0) is None
    place.follow(Delta(closed=(third.ticket.id,)))
    assert (0.86, []) == (place.ledger.occupancy, admitting.decide(0))
    place.follow(Delta(closed=(second.ticket.id,)))
    assert 1 == len(admitting.decide(0))


@pytest.mark.parametrize("bound", [{"max_requests": 2}, {"max_prompt_tokens": 25}])
def test_a_full_queue_turns_away_with_a_time_to_come_back(bound: dict[str, Any]) -> None:
    """Either bound: Overloaded, QUEUE_FULL, with the numbers."""
    admitting = admission(**bound)
    engine(admitting.fleet, blocks=1)
    admitted(admitting, request())
    for _ in range(2):
        assert admitting.admit(request(), 0) is None
    error = refused(admitting, request())
    assert isinstance(error, Overloaded)
    assert ("QUEUE_FULL", 1.0) == (error.reason, error.retry_after_s)
    assert ("2", "20") == (error.metadata["queued_requests"], error.metadata["queued_prompt_tokens"])


def test_a_full_queue_does_not_stop_what_need_not_wait() -> None:
    """A request for an artifact with room is granted, however long another's queue is."""
    admitting = admission(max_requests=1)
    engine(admitting.fleet, "a", blocks=1)
    engine(admitting.fleet, "b", residents=[resident(OTHER)])
    admitted(admitting, request())
    admitting.admit(request(), 0)
    admitted(admitting, request(artifact=OTHER))


def test_without_any_engine_the_answer_is_unavailable() -> None:
    """NO_ENGINE with a time to come back, and nothing is queued."""
    admitting = admission()
    error = refused(admitting, request())
    assert isinstance(error, Unavailable)
    assert ("NO_ENGINE", 1.0) == (error.reason, error.retry_after_s)
    assert 0 == len(admitting.queue)


@pytest.mark.parametrize("state", [GenerationState.FETCHING, GenerationState.WARMING])
def test_an_artifact_on_its_way_is_unavailable_too(state: GenerationState) -> None:
    """The message says that it is being loaded."""
    admitting = admission()
    engine(admitting.fleet, residents=[resident(ARTIFACT, state)])
    error = refused(admitting, request())
    assert isinstance(error, Unavailable)
    assert "NO_ENGINE" == error.reason
    assert "still loading" in error.message


def test_a_registered_engine_not_yet_heard_is_waited_for() -> None:
    """A scheduler just started queues what its registered engines will serve, and grants after the snapshot."""
    admitting = admission()
    fleet = admitting.fleet
    fleet.arrive(engine_record("late"))
    wanted = request()
    assert admitting.admit(wanted, 0) is None
    assert [] == admitting.refuse()
    engine(fleet, "heard")
    assert [wanted] == [grant.request for grant in admitting.decide(0)]


def test_a_registered_engine_without_the_artifact_is_not_waited_for() -> None:
    """Its record says what it will serve."""
    admitting = admission()
    admitting.fleet.arrive(engine_record("e", generations=[generation(OTHER)]))
    assert isinstance(refused(admitting, request()), Unavailable)


@pytest.mark.parametrize("now", [standing(2, OTHER), standing(2, None)], ids=["swapped", "unpublished"])
def test_who_asks_for_what_was_replaced_is_told_what_is_served(now: Serving) -> None:
    """Those who wait, and those who come: with the refusal, as soon as engines drain.

    Fault injection: turns red when `_no_engine` leaves out what `_newer` says, or `refuse` does not hand serving/ on.
    """
    serving = {SERVING_KEY: standing(1)}
    admitting = admission(serving=serving)
    place = engine(admitting.fleet, blocks=1)
    admitted(admitting, request())
    assert admitting.admit(request(routed_by=BY_REVISION_1), 0) is None
    serving[SERVING_KEY] = now
    place.follow(Delta(residents=(resident(state=GenerationState.DRAINING),)))
    (refusal,) = admitting.refuse()
    for error in (refusal.error, refused(admitting, request(routed_by=BY_REVISION_1))):
        served = Served(revision=Revision(2), artifact_id=now.artifact_id)
        assert NoEngine(served, is_draining=True) == NoEngine.told_by(error)


def test_who_knows_what_is_served_is_told_nothing_of_it() -> None:
    """Nor who does not say what it knows. Fault injection: turns red when `_newer` compares no revisions."""
    admitting = admission(serving={SERVING_KEY: standing(1)})
    for routed_by in (BY_REVISION_1, BY_REVISION_1._replace(revision=Revision(3)), None):
        assert NoEngine() == NoEngine.told_by(refused(admitting, request(routed_by=routed_by)))


def test_those_who_wait_are_told_when_the_last_engine_is_lost() -> None:
    """A short silence is waited out; a long one ends their wait with Unavailable."""
    admitting = admission()
    place = engine(admitting.fleet, blocks=1)
    admitted(admitting, request())
    wanted = request()
    admitting.admit(wanted, 0)
    place.advance(Contact.SILENT)
    assert [] == admitting.refuse()
    place.advance(Contact.LOST)
    (refusal,) = admitting.refuse()
    assert wanted is refusal.request
    assert isinstance(refusal.error, Unavailable)
    assert 0 == len(admitting.queue)


def test_a_request_longer_than_the_context_is_invalid() -> None:
    """CONTEXT_EXCEEDED with the numbers, at once."""
    admitting = admission()
    engine(admitting.fleet, residents=[resident(context=100)])
    error = refused(admitting, request(60, 41))
    assert isinstance(error, InvalidRequest)
    assert "CONTEXT_EXCEEDED" == error.reason
    expected = {"prompt_tokens": "60", "max_tokens": "41", "max_context_tokens": "100"}
    assert expected == error.metadata


def test_s_b1_a_prompt_larger_than_the_pool_is_refused_and_the_queue_moves() -> None:
    """A pool of 49 blocks: a prompt of 1002 tokens is refused at once, the next one of 10 is granted.

    Turns red when: `refusal` ends with `return None` instead of `return _too_large(...)`.
    """
    admitting = admission()
    engine(admitting.fleet, blocks=49)
    error = refused(admitting, request(1002, 16))
    assert isinstance(error, InvalidRequest)
    assert "PROMPT_TOO_LARGE" == error.reason
    assert {
        "prompt_tokens": "1002",
        "max_tokens": "16",
        "needed_bytes": "6400",
        "arena_bytes": "4900",
        "max_total_tokens": "785",
    } == error.metadata
    admitted(admitting, request(10))


def test_s_b1_the_largest_request_that_is_told_fits() -> None:
    """The number in the refusal is exact: that many tokens are granted, one more is refused."""
    admitting = admission()
    engine(admitting.fleet, blocks=49)
    assert "PROMPT_TOO_LARGE" == refused(admitting, request(780, 6)).reason
    admitted(admitting, request(780, 5))


def test_s_b1_a_waiting_request_that_no_engine_can_hold_any_more_leaves_the_queue() -> None:
    """When the only large engine goes, those it alone could hold are refused and the others stay."""
    admitting = admission()
    large, small = engine(admitting.fleet, "l", blocks=100), engine(admitting.fleet, "s", blocks=10)
    large.follow(Delta(tickets=(live("x", 91, started=True),)))
    small.follow(Delta(tickets=(live("y", 10, started=True),)))
    wanted, behind = blocks(50), blocks(1)
    admitting.admit(wanted, 0)
    admitting.admit(behind, 0)
    admitting.fleet.leave(large)
    (refusal,) = admitting.refuse()
    assert (wanted, "PROMPT_TOO_LARGE") == (refusal.request, refusal.error.reason)
    close_all(small)
    assert [behind] == [grant.request for grant in admitting.decide(0)]


def test_a_returned_or_expired_ticket_makes_room() -> None:
    """Release and expiry both give the bytes to the next in line."""
    admitting = admission()
    engine(admitting.fleet, blocks=1)
    first = admitted(admitting, request())
    waiting = [request(), request()]
    for each in waiting:
        admitting.admit(each, 0)
    assert admitting.fleet.release(first.ticket.id)
    assert not admitting.fleet.release(first.ticket.id)
    (second,) = admitting.decide(5)
    assert 5 + TTL_NS == admitting.fleet.next_expiry_ns
    assert (second.ticket.id,) == admitting.fleet.expire(5 + TTL_NS)
    assert [waiting[1]] == [grant.request for grant in admitting.decide(5 + TTL_NS)]


def test_a_withdrawn_request_lets_the_next_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head that leaves no longer blocks those whom it lets pass no more."""
    monkeypatch.setattr("services.common.waiting_line.PATIENCE", 0)
    admitting = admission()
    engine(admitting.fleet, blocks=10)
    admitted(admitting, blocks(5))
    head, next_one = blocks(8), blocks(1)
    admitting.admit(head, 0)
    admitting.admit(next_one, 0)
    assert admitting.withdraw(head)
    assert [next_one] == [grant.request for grant in admitting.decide(0)]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60), seed=st.integers(0, 1 << 16))
def test_everybody_is_granted_and_nothing_is_lost(sizes: list[int], seed: int) -> None:
    """Whatever the sizes and whenever tickets close: conserved at every step; those of one size in order of arrival."""
    admitting, chance = admission(unstarted_tokens=200), random.Random(seed)
    place = engine(admitting.fleet, blocks=50)
    wanted = [blocks(size, prompt_tokens=min(size * 16, chance.randint(1, 300))) for size in sizes]
    granted: list[Grant] = [grant for each in wanted if (grant := admitting.admit(each, 0))]
    while len(granted) < len(wanted):
        admitting.check()
        start_prefill(place)
        granted += admitting.decide(0)
        running = list(place.ledger.promises)
        place.follow(Delta(closed=tuple(chance.sample(running, chance.randint(0, len(running))))))
    close_all(place)
    admitting.check()
    in_order = [grant.request for grant in granted]
    assert set(wanted) == set(in_order)
    assert len(wanted) == len(in_order)
    for size in set(sizes):
        alike = {each for each, blocks_ in zip(wanted, sizes, strict=True) if blocks_ == size}
        assert [each for each in wanted if each in alike] == [each for each in in_order if each in alike]
    assert (0, 0) == (place.ledger.promised_bytes, len(admitting.queue))
