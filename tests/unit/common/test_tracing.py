"""Spans end with their scopes and say how; traces go on from process to process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from services.common.errors import Overloaded
from services.common.telemetry.logs import add_trace
from services.common.telemetry.otlp import OneComplaint, resource
from services.common.telemetry.tracing import (
    exporting,
    going_on_from,
    incoming,
    outgoing,
    set_complete,
    span,
    trace_parent,
)
from tests.recorded_spans import recording

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("failure", "error_type"),
    [
        (Overloaded("no room", reason="QUEUE_FULL"), "QUEUE_FULL"),
        (asyncio.CancelledError(), "CANCELLED"),
        (KeyError("x"), "KeyError"),
    ],
)
def test_a_failed_scope_ends_its_span_with_the_reason(failure: BaseException, error_type: str) -> None:
    """Whatever leaves the scope, a cancellation too, is the span's status.

    Fault injection: `span` catches Exception in place of BaseException.
    """
    with recording() as spans, pytest.raises(type(failure)), span("work"):
        raise failure
    ended = spans.named("work")
    assert ended.attributes is not None
    assert (StatusCode.ERROR, error_type) == (ended.status.status_code, ended.attributes["error.type"])


def test_what_is_complete_stays_complete() -> None:
    """A caller that has the last word of an answer and then leaves has not made it fail.

    Fault injection: `set_failed` does not look at the status.
    """

    def work() -> None:
        with span("work") as opened:
            set_complete(opened)
            raise asyncio.CancelledError

    with recording() as spans, pytest.raises(asyncio.CancelledError):
        work()
    ended = spans.named("work")
    assert (StatusCode.OK, {}) == (ended.status.status_code, dict(ended.attributes or {}))


def test_a_stored_parent_is_gone_on_from() -> None:
    """A record carries a trace from the one who wrote it to those who act on it later."""
    with recording() as spans:
        with span("publish"):
            stored = trace_parent()
        with span("load", parent=going_on_from(stored)):
            pass
    publish, load = spans.named("publish"), spans.named("load")
    assert load.parent is not None
    assert publish.context is not None
    assert (publish.context.trace_id, publish.context.span_id) == (load.parent.trace_id, load.parent.span_id)


@pytest.mark.parametrize("stored", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_parent_that_is_none_begins_a_trace(stored: str) -> None:
    """Records of older writers have none, and a registry may hold anything; what is current is not the parent."""
    with recording() as spans, span("outer"), span("load", parent=going_on_from(stored)):
        pass
    assert spans.named("load").parent is None


def test_a_trace_passes_through_a_process_that_exports_nothing() -> None:
    """Its own spans do not exist, the caller's is what it hands on.

    Fault injection: `span` makes nothing current where nobody makes spans.
    """
    with span("hop", parent=incoming([("traceparent", CALLER)])), span("inner"):
        assert {"traceparent": CALLER} == dict(outgoing())


def test_without_a_trace_nothing_is_carried() -> None:
    """No exporter and no caller with a trace: calls go out as they are."""
    with span("hop", parent=incoming([("user-agent", "grpc")])):
        assert () == outgoing()
        assert "" == trace_parent()


def test_events_name_their_span() -> None:
    """An event in a span can be found from its trace; one outside has no empty ids."""
    with recording(), span("work") as opened:
        event = add_trace(None, "info", {"event": "x"})
    ids = opened.get_span_context()
    assert {
        "event": "x",
        "trace_id": trace.format_trace_id(ids.trace_id),
        "span_id": trace.format_span_id(ids.span_id),
    } == event
    assert {"event": "y"} == add_trace(None, "info", {"event": "y"})


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over our own words, and add to them."""
    names = ("service.name", "service.instance.id", "deployment.environment.name")

    def told() -> list[object]:
        return [resource("halogen-engine", "engine-1").attributes.get(name) for name in names]

    assert ["halogen-engine", "engine-1", None] == told()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    assert ["mine", "engine-1", "staging"] == told()


class _Fails(SpanExporter):
    """Fails or not, as the list says."""

    def __init__(self, results: list[SpanExportResult]) -> None:
        self.results = results

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.results.pop(0)


def test_lost_spans_are_said_once() -> None:
    """One event when they begin to be lost, one when they arrive again, none between.

    Fault injection: `OneComplaint` does not remember that it is losing spans.
    """
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = OneComplaint(_Fails([good, bad, bad, bad, good, good, bad]))
    with structlog.testing.capture_logs() as events:
        for _ in range(7):
            exporter.export([])
    assert ["spans_lost", "spans_arrive_again", "spans_lost"] == [event["event"] for event in events]


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "500"},
    ],
)
def test_a_variable_that_the_sdk_refuses_keeps_nobody_from_working(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event says which, and no span is made.

    Fault injection: let the refusal through in `otlp.provider`.
    """
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}
    with structlog.testing.capture_logs() as events, exporting("test", "a", asked):
        assert not trace.get_current_span().is_recording()
    assert ["traces_not_exported"] == [event["event"] for event in events]
