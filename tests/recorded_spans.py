"""Spans kept in this process, for tests that need no collector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common.telemetry.tracing import using


class RecordedSpans:
    """The spans that have ended, in that order."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """The only one of that name."""
        [found] = [span for span in self.ended if span.name == name]
        return found


@contextlib.contextmanager
def recording() -> Iterator[RecordedSpans]:
    """Spans that begin in the scope, and in the tasks begun there, are recorded."""
    recorded, provider = RecordedSpans(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    with using(provider.get_tracer("test")):
        yield recorded
