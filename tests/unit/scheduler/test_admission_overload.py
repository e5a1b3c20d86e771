"""Far more is asked than can be done: what is taken in is done in time, the rest is told at once."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from services.common.errors import Overloaded
from services.common.ids import TicketId
from services.scheduler.admission import Admission
from services.scheduler.engine_instance import EngineInstance
from services.scheduler.occupancy import Delta
from services.scheduler.request import TicketRequest
from tests.unit.scheduler.builders import admission, blocks, engine, start_prefill

PLACES: Final = 10
SERVICE_NS: Final = 1_000_000_000
GAP_NS: Final = SERVICE_NS // PLACES // 3  # between arrivals: three times what the engine does
ARRIVALS: Final = 60 * 30  # a minute of them
WAITING: Final = 20


class Overload(NamedTuple):
    """What became of every arrival."""

    waited_ns: list[int]
    refusals: list[Overloaded]
    longest_queue: int


def run_open_loop(admitting: Admission, place: EngineInstance, prompt_tokens: int) -> Overload:
    """Arrivals at their own pace, whatever is answered; every ticket is served for `SERVICE_NS`."""
    result = Overload([], [], 0)
    running: list[tuple[int, TicketId]] = []
    came: dict[TicketRequest, int] = {}
    longest = 0

    def begin(request: TicketRequest, ticket_id: TicketId, now_ns: int) -> None:
        result.waited_ns.append(now_ns - came[request])
        heapq.heappush(running, (now_ns + SERVICE_NS, ticket_id))

    for arrival in range(ARRIVALS):
        now_ns = arrival * GAP_NS
        while running and running[0][0] <= now_ns:
            end_ns, ticket_id = heapq.heappop(running)
            place.follow(Delta(closed=(ticket_id,)))
            for grant in admitting.decide(end_ns):
                begin(grant.request, grant.ticket.id, end_ns)
        request = blocks(8, prompt_tokens=prompt_tokens)
        came[request] = now_ns
        try:
            if taken := admitting.admit(request, now_ns):
                begin(request, taken.ticket.id, now_ns)
        except Overloaded as refusal:
            result.refusals.append(refusal)
        start_prefill(place)
        longest = max(longest, len(admitting.queue))
        admitting.check()
    return result._replace(longest_queue=longest)


def test_s_b5_at_three_times_the_capacity_the_accepted_wait_no_longer_than_the_queue_is() -> None:
    """A minute of open-loop arrivals: the queue keeps its bound, a third is served without a pause, the rest is told
    at once and when to come back.

    Fault injection: turns red when AdmissionQueue.can_push is always true.
    """
    admitting = admission(max_requests=WAITING)
    place = engine(admitting.fleet, blocks=8 * PLACES * 2, max_tickets=PLACES)
    result = run_open_loop(admitting, place, prompt_tokens=10)
    assert WAITING == result.longest_queue
    assert max(result.waited_ns) <= WAITING * SERVICE_NS // PLACES + GAP_NS * PLACES
    assert len(result.waited_ns) >= (ARRIVALS * GAP_NS // SERVICE_NS - 1) * PLACES
    assert ARRIVALS == len(result.waited_ns) + len(result.refusals) + len(admitting.queue)
    assert {("QUEUE_FULL", True)} == {(each.reason, bool(each.retry_after_s)) for each in result.refusals}


def test_s_b5_long_prompts_fill_the_queue_by_their_tokens() -> None:
    """Four of a hundred tokens are as much as may wait, however many requests might.

    Fault injection: turns red when AdmissionQueue.can_push looks at the requests alone.
    """
    admitting = admission(max_prompt_tokens=400)
    place = engine(admitting.fleet, blocks=8 * PLACES * 2, max_tickets=PLACES)
    result = run_open_loop(admitting, place, prompt_tokens=100)
    assert 4 == result.longest_queue
    assert {"400"} == {each.metadata["queued_prompt_tokens"] for each in result.refusals}


def test_s_b5_who_would_wait_for_too_long_is_told_at_once() -> None:
    """The queue has places for a thousand: how fast it goes says how many of them are of use.

    Fault injection: turns red when `admit` leaves out `_check_wait`.
    """
    wait_ns = 5 * SERVICE_NS
    admitting = admission(queue_wait_ns=wait_ns)
    place = engine(admitting.fleet, blocks=8 * PLACES * 2, max_tickets=PLACES)
    result = run_open_loop(admitting, place, prompt_tokens=10)
    assert max(result.waited_ns) <= 1.2 * wait_ns
    assert len(result.waited_ns) >= (ARRIVALS * GAP_NS // SERVICE_NS - 1) * PLACES
    assert {"QUEUE_TOO_LONG"} == {each.reason for each in result.refusals}
    assert all(each.retry_after_s for each in result.refusals)
