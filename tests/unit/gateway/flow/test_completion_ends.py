"""The flow of a request that is ended from outside: abort, a caller that leaves, a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from services.common.completion import Chunk, FinishReason, Usage
from services.common.errors import AlreadyExists, DeadlinePassed, InvalidRequest, Unavailable
from services.common.ids import RequestId

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

R = RequestId("r")


async def test_an_abort_ends_the_stream_with_what_was_used(flow: Flow) -> None:
    """Within one chunk: finish reason, usage so far, and the engine is let go before it."""
    flow.engines.scripts.append([await flow.says("once"), asyncio.Event()])
    stream = flow.stream()
    said = (await anext(stream)).token_ids
    assert flow.running.abort(R)
    [last] = [chunk async for chunk in stream]
    assert FinishReason.ABORTED == last.finish_reason
    assert Usage(len(await flow.ids("once upon a time")), len(said)) == last.usage
    assert last.provenance is not None
    assert "engine-a" == last.provenance.engine_id


async def test_an_abort_does_not_lose_what_was_made_before_it(flow: Flow) -> None:
    """Text that the reader has not taken yet comes with the last chunk, and counts."""
    flow.engines.scripts.append([await flow.says("once"), await flow.says(" upon"), asyncio.Event()])
    stream = flow.stream()
    first = asyncio.ensure_future(anext(stream))
    await flow.engines.waiting.wait()
    flow.running.abort(R)
    chunks = [await first, *[chunk async for chunk in stream]]
    assert "once upon" == "".join(chunk.text for chunk in chunks)
    assert chunks[-1].usage is not None
    assert len(await flow.ids("once upon")) == chunks[-1].usage.completion_tokens


async def test_an_abort_while_waiting_for_a_ticket_works(flow: Flow) -> None:
    """The request leaves the scheduler's queue, and its only chunk says so."""
    flow.scheduler.script.append(asyncio.Event())
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.scheduler.waiting.wait()
        assert flow.running.abort(R)
    [chunk] = answer.result()
    assert FinishReason.ABORTED == chunk.finish_reason
    assert (chunk.usage, True) == (
        Usage(len(await flow.ids("once upon a time")), 0),
        flow.scheduler.left.is_set(),
    )
    assert [] == flow.engines.asked


async def test_an_aborted_id_can_be_used_again_at_once(flow: Flow) -> None:
    """When the last chunk is there, the id is free."""
    flow.scheduler.script.append(asyncio.Event())
    stream = flow.stream()
    first = asyncio.ensure_future(anext(stream))
    await flow.scheduler.waiting.wait()
    flow.running.abort(R)
    assert FinishReason.ABORTED == (await first).finish_reason
    flow.engines.scripts.append([await flow.says("fox", FinishReason.LENGTH)])
    assert ["fox"] == [chunk.text for chunk in await flow.collect()]
    await stream.aclose()


async def test_an_abort_before_the_engine_answers_gives_the_ticket_back(flow: Flow) -> None:
    """A granted ticket that no engine has answered to is returned."""
    flow.engines.scripts.append([asyncio.Event()])
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.engines.waiting.wait()
        flow.running.abort(R)
    await flow.scheduler.returned.wait()
    assert (flow.scheduler.ticket_ids[:1], FinishReason.ABORTED) == (
        flow.scheduler.released,
        answer.result()[-1].finish_reason,
    )


async def test_an_abort_may_come_twice_or_late(flow: Flow) -> None:
    """The second is no error, and one after the end finds nothing."""
    flow.engines.scripts.append([await flow.says("once"), asyncio.Event()])
    stream = flow.stream()
    await anext(stream)
    assert (True, True) == (flow.running.abort(R), flow.running.abort(R))
    assert 1 == len([chunk async for chunk in stream])
    assert not flow.running.abort(R)


async def test_an_abort_that_comes_after_the_end_was_made_changes_nothing(flow: Flow) -> None:
    """The first ending counts, also when the reader has not seen it yet."""
    flow.engines.scripts.append([await flow.says("A"), await flow.says("B", FinishReason.LENGTH)])
    stream = flow.stream()
    first = asyncio.ensure_future(anext(stream))
    await flow.engines.let_go.wait()
    flow.running.abort(R)
    chunks = [await first, *[chunk async for chunk in stream]]
    assert FinishReason.LENGTH == chunks[-1].finish_reason


async def test_s_a5_an_abort_that_overtakes_its_request_ends_it_before_it_runs(flow: Flow) -> None:
    """Its only chunk says so; nobody is asked for a ticket, and the id is free again.

    Fault injection: turns red when Running.abort remembers nothing.
    """
    assert not flow.running.abort(R)
    [chunk] = await flow.collect()
    assert (FinishReason.ABORTED, Usage(0, 0)) == (chunk.finish_reason, chunk.usage)
    assert ([], []) == (flow.scheduler.asked, flow.scheduler.released)
    flow.engines.scripts.append([await flow.says("fox", FinishReason.LENGTH)])
    assert ["fox"] == [chunk.text for chunk in await flow.collect()]


async def test_s_a5_a_late_abort_harms_no_later_request(flow: Flow) -> None:
    """An abort that finds its request ended is not kept for the next one of that id.

    Fault injection: turns red when Running.admit does not note the end.
    """
    for text in ("fox", "dog"):
        flow.engines.scripts.append([await flow.says(text, FinishReason.LENGTH)])
        assert [text] == [chunk.text for chunk in await flow.collect()]
        assert not flow.running.abort(R)


async def test_an_abort_needs_an_id(flow: Flow) -> None:
    """An empty id aborts nobody and says so."""
    flow.engines.scripts.append([await flow.says("once"), asyncio.Event()])
    async with contextlib.aclosing(flow.stream()) as stream:
        await anext(stream)
        with pytest.raises(InvalidRequest, match="request_id is empty"):
            flow.running.abort(RequestId(""))
        assert 1 == len(flow.running)


async def test_a_running_id_is_not_given_twice(flow: Flow) -> None:
    """The second request of an id is refused; the first goes on."""
    gate = asyncio.Event()
    flow.engines.scripts.append(
        [await flow.says("once"), gate, await flow.says(" upon", FinishReason.LENGTH)]
    )
    stream = flow.stream()
    await anext(stream)
    with pytest.raises(AlreadyExists) as caught:
        await flow.collect()
    assert "REQUEST_ID_IN_USE" == caught.value.reason
    gate.set()
    assert [" upon"] == [chunk.text async for chunk in stream]


async def test_a_caller_that_leaves_while_waiting_for_a_ticket_leaves_the_queue(flow: Flow) -> None:
    """Its place in the scheduler's queue is given up with it."""
    flow.scheduler.script.append(asyncio.Event())
    waiting = asyncio.ensure_future(flow.collect())
    await flow.scheduler.waiting.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert flow.scheduler.left.is_set()
    flow.check_nothing_is_held()
    # The grant may have been made in the moment of leaving: it goes back by its id.
    # Turns red when: Completions._attempt gives back only what it has received.
    await flow.scheduler.returned.wait()
    assert flow.scheduler.ticket_ids == flow.scheduler.released


async def test_a_caller_that_leaves_before_the_first_token_returns_its_ticket(flow: Flow) -> None:
    """A ticket that may not have been redeemed goes back, though its request is cancelled."""
    flow.engines.scripts.append([asyncio.Event()])
    waiting = asyncio.ensure_future(flow.collect())
    await flow.engines.waiting.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await flow.scheduler.returned.wait()
    assert flow.scheduler.ticket_ids[:1] == flow.scheduler.released


async def test_a_caller_that_leaves_in_the_middle_ends_the_engines_work(flow: Flow) -> None:
    """The engine call is closed; the ticket, redeemed, is the engine's to close."""
    flow.engines.scripts.append([await flow.says("once"), asyncio.Event()])

    async def read() -> None:
        async with contextlib.aclosing(flow.stream()) as stream:
            async for _ in stream:
                pass

    reading = asyncio.ensure_future(read())
    await flow.engines.waiting.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    flow.check_nothing_is_held()
    await asyncio.sleep(0)
    assert [] == flow.scheduler.released


async def test_a_stream_may_be_closed_by_another_task(flow: Flow) -> None:
    """As the event loop does with a generator that was dropped in the middle of a write."""
    flow.engines.scripts.append([await flow.says("once"), asyncio.Event()])
    stream = flow.stream()
    await anext(stream)
    await asyncio.create_task(stream.aclose())
    flow.check_nothing_is_held()


async def test_the_deadline_goes_along_the_hops(flow: Flow) -> None:
    """Scheduler and engine get what is left of it, and no more."""
    flow.engines.scripts.append([await flow.says("fox", FinishReason.LENGTH)])
    await flow.collect(timeout_s=60)
    [for_ticket], [for_tokens] = flow.scheduler.timeouts_s, flow.engines.timeouts_s
    assert for_ticket is not None
    assert for_tokens is not None
    assert 60 > for_ticket > for_tokens > 0


async def test_without_a_deadline_nobody_gets_one(flow: Flow) -> None:
    """No hop invents one."""
    flow.engines.scripts.append([await flow.says("fox", FinishReason.LENGTH)])
    await flow.collect()
    assert ([None], [None]) == (flow.scheduler.timeouts_s, flow.engines.timeouts_s)


async def test_a_passed_deadline_begins_nothing(flow: Flow) -> None:
    """No ticket is asked for in vain."""
    with pytest.raises(DeadlinePassed):
        await flow.collect(timeout_s=-1.0)
    assert [] == flow.scheduler.asked


async def test_the_second_ticket_is_within_the_same_deadline(flow: Flow) -> None:
    """A refusal does not start the clock anew."""
    flow.engines.scripts += [[Unavailable("gone")], [await flow.says("fox", FinishReason.LENGTH)]]
    await flow.collect(timeout_s=60)
    first, second = flow.scheduler.timeouts_s
    assert first is not None
    assert second is not None
    assert first > second


async def test_an_engine_is_not_read_further_than_the_bound(flow: Flow) -> None:
    """A reader that stops reading makes the engine wait; nothing grows without limit."""
    thousand = [await flow.says("A")] * 3_000
    flow.engines.scripts.append([*thousand, await flow.says("B", FinishReason.LENGTH)])
    stream = flow.stream()
    chunks: list[Chunk] = [await anext(stream)]
    for _ in range(5_000):
        await asyncio.sleep(0)
    assert 1_024 == flow.engines.read - len(chunks[0].token_ids)
    chunks += [chunk async for chunk in stream]
    assert 3_001 == sum(len(chunk.token_ids) for chunk in chunks)
