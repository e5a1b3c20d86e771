"""Every accepted request is counted once at its end, whatever its end is."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from services.common.completion import FinishReason
from services.common.errors import (
    AlreadyExists,
    DeadlinePassed,
    HalogenError,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from services.common.ids import ModelName, RequestId
from services.common.rpc.in_flight import Call
from services.gateway.request import TextPrompt
from tests.scrape import Scrape, read
from tests.unit.gateway.flow.conftest import MODEL, Flow

PER_REQUEST = ("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens")


def ended(flow: Flow) -> dict[str, float]:
    """Terminal counts by finish reason, once they have been found to agree with everything else."""
    told = read(flow.registry)
    ends = told.by("halogen_requests_total", "finish_reason")
    assert told.value("halogen_requests_accepted_total") == sum(ends.values())
    for name in PER_REQUEST:
        assert told.value("halogen_requests_accepted_total") == told.value(f"halogen_{name}_count")
    return ends


async def test_answers_are_counted_by_their_finish_reason(flow: Flow) -> None:
    """Tokens and stages are observed with them."""
    for reason in (FinishReason.STOP, FinishReason.LENGTH):
        flow.engines.scripts.append([await flow.says("there"), await flow.says(" was", reason)])
    chunks = [*await flow.collect(), *await flow.collect()]
    assert {"stop": 1, "length": 1} == ended(flow)
    told = read(flow.registry)
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert sum(usage.completion_tokens for usage in usages) == told.value(
        "halogen_request_generation_tokens_sum", model=MODEL, cohort="stable"
    )
    assert sum(usage.prompt_tokens for usage in usages) == told.value("halogen_request_prompt_tokens_sum")
    for stage in ("time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert 2 == told.value(f"halogen_{stage}_seconds_count", model=MODEL)
    assert 2 == told.value("halogen_time_per_output_token_seconds_count")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (InternalError("broken"), "error"),
        (Overloaded("full", reason="QUEUE_FULL"), "rejected"),
        (DeadlinePassed("late"), "deadline"),
        (RuntimeError("bug"), "error"),
    ],
)
async def test_failures_before_a_token_are_counted(flow: Flow, failure: Exception, reason: str) -> None:
    """What was turned away also says why; faults of ours are errors."""
    flow.scheduler.script = [[failure]] * 2
    with pytest.raises(type(failure)):
        await flow.collect()
    assert {reason: 1} == ended(flow)
    rejections = {"QUEUE_FULL": 1} if reason == "rejected" else {}
    assert rejections == read(flow.registry).by("halogen_rejections_total", "reason")


async def test_a_failure_in_the_middle_is_an_error(flow: Flow) -> None:
    """Tokens that came before it count."""
    flow.engines.scripts.append([await flow.says("there"), Overloaded("full")])
    with pytest.raises(HalogenError):
        await flow.collect()
    assert {"error": 1} == ended(flow)
    assert 0 < read(flow.registry).value("halogen_request_generation_tokens_sum")


async def test_who_leaves_is_counted(flow: Flow) -> None:
    """Nothing that is raised tells of it.

    Fault injection: `Completions._accounted` counts in `else` and in `except HalogenError` only.
    """
    flow.engines.scripts.append([await flow.says("there"), asyncio.Event()])
    stream = flow.stream()
    await anext(stream)
    await stream.aclose()
    assert {"cancelled": 1} == ended(flow)


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (Overloaded("slow", reason="SLOW_READER"), "slow_reader"),
        (Unavailable("over", reason="STOPPING"), "error"),
    ],
)
async def test_a_call_that_we_end_is_not_counted_as_left(
    flow: Flow, why: HalogenError, expected: str
) -> None:
    """The server cancels the call, as it does when the caller leaves; the reason tells the two apart."""
    call = Call("/halogen.v1.InferenceService/Chat", slow_reader_s=30)
    flow.engines.scripts.append([await flow.says("there"), asyncio.Event()])
    with contextlib.suppress(type(why)):
        async with call.under_way(), contextlib.aclosing(flow.stream()) as stream:
            await anext(stream)
            call.end(why)
            await anext(stream)
    assert {expected: 1} == ended(flow)


async def test_an_abort_is_counted_once_however_often_it_is_asked_for(flow: Flow) -> None:
    """The request ends with finish_reason aborted."""
    flow.engines.scripts.append([await flow.says("there"), asyncio.Event()])
    stream = flow.stream()
    await anext(stream)
    assert [True, True] == [flow.running.abort(RequestId("r")) for _ in range(2)]
    assert [FinishReason.ABORTED] == [chunk.finish_reason async for chunk in stream]
    assert {"aborted": 1} == ended(flow)


async def test_what_is_refused_at_the_door_was_never_accepted(flow: Flow) -> None:
    """Too long a prompt and an id in use are rejections alone."""
    flow.engines.scripts.append([await flow.says("there"), asyncio.Event()])
    stream = flow.stream()
    await anext(stream)
    with pytest.raises(AlreadyExists):
        await flow.collect()
    with pytest.raises(InvalidRequest):
        await flow.collect(request_id=RequestId("s"), prompt=TextPrompt("x" * 2_000))
    await stream.aclose()
    assert {"cancelled": 1} == ended(flow)
    rejections = read(flow.registry).by("halogen_rejections_total", "reason")
    assert {"REQUEST_ID_IN_USE": 1, "PROMPT_TOO_LARGE": 1} == rejections


async def test_callers_cannot_make_up_series(flow: Flow) -> None:
    """A hundred models that nobody serves, and a hundred request ids, are as many series as one."""

    async def ask(number: int) -> Scrape:
        with pytest.raises(NotFound):
            await flow.collect(model=ModelName(f"model-{number}"), request_id=RequestId(f"r-{number}"))
        return read(flow.registry)

    first = await ask(0)
    for number in range(1, 100):
        last = await ask(number)
    assert first.series == last.series
    assert {"unknown": 100} == last.by("halogen_requests_total", "model")
