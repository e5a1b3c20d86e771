"""Traces of requests and of publishes, as a collector receives them from a running system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.telemetry.tracing import exporting
from tests.otlp_receiver import ERROR, OK, OtlpReceiver, ReceivedSpan, receiving
from tests.scenarios.cluster import Cluster

STORY = "Once upon a time"
SLACK_NS = 50_000_000  # a server may end a call a moment after its client has what it wanted
REQUEST = {
    ("halogen-client", "text_completion"),
    ("halogen-gateway", "halogen.v1.InferenceService/Generate"),
    ("halogen-gateway", "tokenize"),
    ("halogen-gateway", "queue"),
    ("halogen-gateway", "generate"),
    ("halogen-scheduler", "halogen.v1.SchedulerService/GrantTicket"),
    ("halogen-engine", "halogen.v1.EngineService/GenerateTokens"),
    ("halogen-engine", "queue"),
    ("halogen-engine", "prefill"),
    ("halogen-engine", "decode"),
}
PUBLISH = {
    ("halogen-client", "publish"),
    ("halogen-gateway", "halogen.v1.ControlService/RegisterArtifact"),
    ("halogen-gateway", "halogen.v1.ControlService/PublishModel"),
    ("halogen-gateway", "load"),
    ("halogen-loader", "halogen.v1.LoaderService/PrepareArtifact"),
    ("halogen-loader", "verify"),
    ("halogen-loader", "read"),
    ("halogen-engine", "load"),
    ("halogen-engine", "prepare"),
    ("halogen-engine", "map"),
    ("halogen-engine", "warm"),
    ("halogen-engine", "swap"),
    ("halogen-scheduler", "swap"),
}
Start = Callable[..., Any]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with receiving(monkeypatch) as receiver:
        yield receiver


async def test_a_request_is_one_trace(
    start: Start, driver: str, stories: dict[str, Path], collector: OtlpReceiver
) -> None:
    """Client, gateway, scheduler and engine under one id, each stage within its parent.

    Fault injection: `outgoing` returns nothing.
    """
    system: Cluster = await start(driver)
    await system.publish("stories", stories["stories-v1"])
    with exporting("client", "test"):
        async with system.client() as client:
            answer = await client.generate(STORY, max_tokens=8, ignore_eos=True).complete()
        spans = await _wait(collector, "text_completion", REQUEST)
    _check_times(spans)
    by_name = {(span.service, span.name): span for span in spans}
    engine = by_name["halogen-engine", "halogen.v1.EngineService/GenerateTokens"]
    queue, prefill, decode = (by_name["halogen-engine", name] for name in ("queue", "prefill", "decode"))
    assert [engine.span_id] * 3 == [queue.parent_id, prefill.parent_id, decode.parent_id]
    assert (queue.end_ns, prefill.end_ns) == (prefill.start_ns, decode.start_ns)
    for service, name in (
        ("halogen-client", "text_completion"),
        ("halogen-gateway", "halogen.v1.InferenceService/Generate"),
        ("halogen-engine", "halogen.v1.EngineService/GenerateTokens"),
    ):
        span = by_name[service, name]
        assert OK == span.status
        assert (answer.usage.prompt_tokens, 8, ["length"]) == (
            span.attributes["gen_ai.usage.input_tokens"],
            span.attributes["gen_ai.usage.output_tokens"],
            span.attributes["gen_ai.response.finish_reasons"],
        )
    assert {answer.request_id} == {
        span.attributes["halogen.request_id"] for span in spans if "halogen.request_id" in span.attributes
    }


async def test_a_publish_is_one_trace(
    start: Start, driver: str, stories: dict[str, Path], collector: OtlpReceiver
) -> None:
    """From the command line to the swap: whoever acts on the target's record goes on with its trace.

    Fault injection: `Control` writes targets without their trace_parent.
    """
    system: Cluster = await start(driver)
    with exporting("client", "test"):
        published = await system.publish("stories", stories["stories-v1"])
        spans = await _wait(collector, "publish", PUBLISH)
    assert all(span.start_ns <= span.end_ns for span in spans)
    root = next(span for span in spans if span.name == "publish")
    assert all(root.start_ns <= span.start_ns for span in spans)
    artifacts = {span.attributes.get("halogen.artifact_id") for span in spans} - {None}
    assert {published.artifact_id} == artifacts


async def test_s_h3_a_cancelled_request_leaves_its_spans(
    start: Start, driver: str, long_context: Path, collector: OtlpReceiver
) -> None:
    """A client that leaves in mid-stream: every process tells how far it came, and that it was cancelled.

    Fault injection: `server_span` ends its span after the try, not in its finally.
    """
    system: Cluster = await start(driver)
    await system.publish("long", long_context)
    with exporting("client", "test"):
        async with (
            system.client() as client,
            client.generate([7] * 20, max_tokens=12_000, ignore_eos=True) as stream,
        ):
            await anext(aiter(stream))
        spans = await _wait(collector, "text_completion", REQUEST)
    for service, name in (
        ("halogen-client", "text_completion"),
        ("halogen-gateway", "halogen.v1.InferenceService/Generate"),
        ("halogen-engine", "halogen.v1.EngineService/GenerateTokens"),
    ):
        [span] = [each for each in spans if (each.service, each.name) == (service, name)]
        assert (ERROR, "CANCELLED") == (span.status, span.attributes["error.type"])
        assert 1 <= span.attributes["gen_ai.usage.output_tokens"] < 12_000
        assert "gen_ai.response.finish_reasons" not in span.attributes


async def test_an_aborted_request_leaves_its_spans(
    start: Start, long_context: Path, collector: OtlpReceiver
) -> None:
    """What Abort ends has come to an end for its caller, and was cut short for the engine."""
    system: Cluster = await start("in_process")
    await system.publish("long", long_context)
    with exporting("client", "test"):
        async with system.client() as client:
            stream = client.generate([7] * 20, request_id="r1", max_tokens=12_000, ignore_eos=True)
            async for _ in stream:
                await client.abort("r1")
        spans = await _wait(collector, "text_completion", REQUEST)
    ends = {
        span.service: (span.status, span.attributes.get("gen_ai.response.finish_reasons"))
        for span in spans
        if span.name in {"text_completion", "halogen.v1.InferenceService/Generate"}
    }
    assert {"halogen-client": (OK, ["aborted"]), "halogen-gateway": (OK, ["aborted"])} == ends
    [engine] = [span for span in spans if span.name.endswith("GenerateTokens")]
    assert ERROR == engine.status


async def test_a_collector_that_is_not_there_costs_no_request(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are served as ever, and the system ends as it does without."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        answers = [await client.generate(STORY, max_tokens=4).complete() for _ in range(5)]
    assert 5 == len(answers)


async def _wait(
    collector: OtlpReceiver, root: str, wanted: Collection[tuple[str, str]]
) -> list[ReceivedSpan]:
    """The trace, once every wanted (service, name) has come."""

    def are_all(spans: list[ReceivedSpan]) -> bool:
        return set(wanted) <= {(span.service, span.name) for span in spans}

    return await asyncio.to_thread(collector.wait, root, are_all)


def _check_times(spans: list[ReceivedSpan]) -> None:
    """Each span lies within its parent, those of another process but for a moment."""
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert span.start_ns <= span.end_ns
        if parent := by_id.get(span.parent_id):
            slack_ns = 0 if span.service == parent.service else SLACK_NS
            assert parent.start_ns <= span.start_ns, (parent, span)
            assert span.end_ns <= parent.end_ns + slack_ns, (parent, span)
