"""The OpenTelemetry SDK, set up for one role; the rest of the system knows its API only."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)

from services.common.telemetry.exporter_choice import ExporterKind

FLUSH_S: Final = 2.0

log = structlog.get_logger()


@contextlib.contextmanager
def provider(kind: ExporterKind, service: str, instance: str) -> Iterator[TracerProvider | None]:
    """Batches spans in a thread and sends them while the scope lasts; its end waits `FLUSH_S` for the last ones.

    None where the SDK refuses an OTEL_* variable: tracing never keeps a process from starting.
    """
    logging.getLogger("opentelemetry").setLevel(
        logging.CRITICAL
    )  # it would complain of every batch; we do once
    try:
        made = _make(kind, resource(service, instance))
    except Exception as refusal:  # noqa: BLE001  # the SDK has no error of its own for these
        log.warning("traces_not_exported", error=str(refusal), hint="see the OTEL_* variables")
        yield None
        return
    try:
        yield made
    finally:
        last = threading.Thread(target=made.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(FLUSH_S)


def _make(kind: ExporterKind, described: Resource) -> TracerProvider:
    exporter = ConsoleSpanExporter() if kind is ExporterKind.CONSOLE else OTLPSpanExporter()
    made = TracerProvider(resource=described, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(OneComplaint(exporter)))
    return made


def resource(service: str, instance: str) -> Resource:
    """Who the spans are of; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over what is given."""
    ours = {"service.name": service, "service.instance.id": instance}
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


class OneComplaint(SpanExporter):
    """Exports through another exporter, and logs when spans begin to be lost and when they arrive again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_losing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_lost = result is not SpanExportResult.SUCCESS
        if is_lost and not self._is_losing:
            log.warning("spans_lost", hint="no collector takes them: see OTEL_EXPORTER_OTLP_ENDPOINT")
        elif self._is_losing and not is_lost:
            log.info("spans_arrive_again")
        self._is_losing = is_lost
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
