"""checkpoint.max_drain_s: answers on old weights do not hold new ones up for ever."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from halogen.v1 import engine_pb2, types_pb2
from services.common.errors import PreconditionFailed
from services.common.ids import InstanceId, ProcessId
from services.common.registry.publish_records import Strategy, SwapMode
from services.common.registry.records import GenerationState as State
from services.engine.generation_action import EndStreams
from services.engine.servicer import EngineServicer
from services.engine.token_stream import TokenStream
from tests.unit.engine.fakes import CountingModel, Gate, request
from tests.unit.engine.generation_world import NEW, OLD, THIRD, world
from tests.unit.engine.generations_alone import TICKET_TTL_S, GenerationsAlone

MAX_DRAIN_S = 30.0


def swapped(max_drain_s: float = MAX_DRAIN_S) -> GenerationsAlone:
    """OLD drains, beside NEW."""
    it = GenerationsAlone(max_drain_s=max_drain_s)
    it.publish(OLD)
    it.publish(NEW)
    return it


@pytest.mark.parametrize(("max_drain_s", "lasts_s"), [(MAX_DRAIN_S, MAX_DRAIN_S), (1.0, TICKET_TTL_S)])
def test_streams_end_when_their_time_is_over_and_others_wait(max_drain_s: float, lasts_s: float) -> None:
    """Once, at its time and not before, and never while a ticket may come in; then there is room.

    Fault injection: turns red when `_due_s` knows nothing of overdue drains, `_end_overdue` does not look at the time, or
    `_drain_if_replaced` forgets how long a ticket lives.
    """
    it = GenerationsAlone(max_drain_s=max_drain_s)
    old = it.publish(OLD)
    with it.generations.borrow(OLD):
        it.publish(NEW)
        it.target(THIRD)
        it.decide()
        third = it.allocate(THIRD)
        assert it.now_s + lasts_s == it.generations.next_due_s
        it.now_s += lasts_s - 0.5
        assert [] == it.decide()
        it.now_s += 0.5
        assert [EndStreams(old)] == it.decide()
        assert [] == it.decide()
    it.settle()
    assert third in it.proceeding


def test_streams_go_on_while_nobody_waits() -> None:
    """A long answer is no harm as long as its memory is nobody else's need."""
    it = swapped()
    with it.generations.borrow(OLD):
        it.now_s += 10 * MAX_DRAIN_S
        assert [] == it.decide()
        assert it.generations.next_due_s is None


def test_without_a_bound_those_who_wait_wait() -> None:
    """0, the default, ends nothing."""
    it = swapped(max_drain_s=0)
    with it.generations.borrow(OLD):
        it.target(THIRD)
        it.decide()
        it.allocate(THIRD)
        it.now_s += 10 * MAX_DRAIN_S
        assert [] == it.decide()


def test_a_drain_that_begins_again_has_its_whole_time() -> None:
    """It was taken back by a rollback in between."""
    it = swapped()
    it.now_s += MAX_DRAIN_S - 1
    it.publish(OLD)
    it.publish(NEW)
    with it.generations.borrow(OLD):
        it.target(THIRD)
        it.decide()
        it.allocate(THIRD)
        it.now_s += 1
        assert [] == it.decide()
        it.now_s += MAX_DRAIN_S - 1
        assert [EndStreams(it.held(OLD))] == it.decide()


def test_a_drain_that_was_taken_back_is_never_over() -> None:
    """What serves again is nobody's to end. Turns red when: `_settle` keeps the time of a drain that it takes back."""
    it = GenerationsAlone(max_drain_s=MAX_DRAIN_S)
    it.publish(OLD)
    new = it.publish(NEW)
    with it.generations.borrow(OLD), it.generations.borrow(NEW):
        it.publish(OLD)
        it.target(THIRD)
        it.decide()
        it.allocate(THIRD)
        it.now_s += MAX_DRAIN_S
        assert [EndStreams(new)] == it.decide()


def test_what_drains_for_another_is_bounded_too() -> None:
    """By drain_then_load, the streams on what gateways still route to."""
    it = GenerationsAlone(max_drain_s=MAX_DRAIN_S)
    old = it.publish(OLD)
    it.target(NEW, strategy=Strategy(mode=SwapMode.DRAIN_THEN_LOAD))
    it.decide()
    it.generations.reached(it.loads[NEW], State.ALLOCATING)
    with it.generations.borrow(OLD):
        it.decide()
        it.now_s += MAX_DRAIN_S
        assert [EndStreams(old)] == it.decide()


async def feed(gate: Gate, stream: TokenStream, tokens: list[int]) -> None:
    """Lets one step after the other be computed, and reads, until the stream ends."""
    while True:
        gate.open()
        tokens += (await anext(stream)).token_ids


async def test_a_stream_whose_time_is_over_says_so() -> None:
    """REVISION_RETIRED, after all tokens that were computed; the one that waited comes in.

    Fault injection: turns red when the manager does nothing about EndStreams, or Stepper does not look at `ending`.
    """
    gate, is_gated = Gate(), threading.Event()
    async with contextlib.AsyncExitStack() as scope:
        it = await scope.enter_async_context(world(ticket_ttl_s=0.02, max_drain_s=0.02))
        it.models[OLD] = CountingModel(lambda step: gate(step) if is_gated.is_set() else None)
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        with it.generations.borrow(OLD) as held:
            await it.serve(NEW, await it.target(NEW))
            await it.until(lambda states: states == {OLD: State.DRAINING, NEW: State.ACTIVE})
            is_gated.set()
            stream = await scope.enter_async_context(
                it.engine.run(held.lender, request(prompt=(1,), max_tokens=4_000))
            )
        await it.target(THIRD)
        await it.until(lambda states: states.get(THIRD) is State.ALLOCATING)
        tokens: list[int] = []
        with pytest.raises(PreconditionFailed, match="ask again") as ended:
            await feed(gate, stream, tokens)
        assert "REVISION_RETIRED" == ended.value.reason
        assert [(2 + number) % CountingModel.vocab_size for number in range(len(tokens))] == tokens
        await it.until(lambda states: states == {NEW: State.ACTIVE, THIRD: State.ACTIVE})


class AnyTicket:
    """Redeems whatever comes."""

    def redeem(self, *_: object) -> None:
        pass


class NoDeadline:
    """The context of a call that may take as long as it takes."""

    def time_remaining(self) -> None:
        return None


async def test_a_reader_that_does_not_read_holds_up_no_drain() -> None:
    """What is computed waits for him without the weights that it was computed with.

    Fault injection: turns red when EngineServicer keeps what it has borrowed until its stream has ended.
    """
    async with world(ticket_ttl_s=0.001) as it:
        gate: Any = AnyTicket()
        servicer = EngineServicer(
            engine=it.engine,
            generations=it.generations,
            gate=gate,
            engine_id=ProcessId("engine-1"),
            instance_id=InstanceId("i"),
            runtime_build="test",
        )
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        asked = engine_pb2.GenerateTokensRequest(
            ticket=types_pb2.Ticket(ticket_id="t", artifact_id=OLD, reserved_bytes=1 << 20),
            request_id="r",
            prompt_token_ids=[1],
            sampling=types_pb2.SamplingParams(temperature=0, top_k=0, top_p=1, seed=0, max_tokens=40),
        )
        context: Any = NoDeadline()
        responses = servicer.GenerateTokens(asked, context)
        read = list((await anext(responses)).token_ids)
        await it.serve(NEW, await it.target(NEW))
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        read += [token async for response in responses for token in response.token_ids]
        assert list(range(2, 42)) == read
