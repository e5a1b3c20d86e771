"""An OTLP gRPC receiver for tests, on the stubs of opentelemetry-proto; it runs in threads of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

PATIENCE_S = 20.0
ERROR = trace_pb2.Status.STATUS_CODE_ERROR
OK = trace_pb2.Status.STATUS_CODE_OK


class ReceivedSpan(NamedTuple):
    """A span as a collector sees it; times in nanoseconds of Unix time."""

    service: str
    instance: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    status: int
    attributes: Mapping[str, Any]


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that is exported to it."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._news = threading.Condition()

    def Export(  # noqa: N802  # gRPC names it
        self, request: Any, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._news:
            for group in request.resource_spans:
                source = _values(group.resource.attributes)
                spans = (span for scope in group.scope_spans for span in scope.spans)
                self._spans.extend(_received(span, source) for span in spans)
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, root: str, are_all: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """The trace whose root span's name begins with `root`, once it is whole.

        Raises:
            AssertionError: It was not within `PATIENCE_S`; the message tells what has come.
        """
        with self._news:
            self._news.wait_for(lambda: are_all(self._trace(root)), PATIENCE_S)
            found = self._trace(root)
            assert are_all(found), _shown(found or self._spans)
            return found

    def _trace(self, root: str) -> list[ReceivedSpan]:
        roots = {each.trace_id for each in self._spans if not each.parent_id and each.name.startswith(root)}
        return [each for each in self._spans if each.trace_id in roots]


@contextlib.contextmanager
def receiving(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A receiver, and an environment that sends spans to it soon after they end."""
    receiver, server = OtlpReceiver(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _received(span: trace_pb2.Span, source: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        service=source["service.name"],
        instance=source["service.instance.id"],
        name=span.name,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=span.status.code,
        attributes=_values(span.attributes),
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def _shown(spans: list[ReceivedSpan]) -> str:
    return "\n".join(f"{each.service} {each.name} {each.status} {dict(each.attributes)}" for each in spans)
