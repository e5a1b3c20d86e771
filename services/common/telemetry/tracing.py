"""Spans: who makes them here, how they end, and how a trace goes on in another process.

Without an exporter no span is made; the trace of a caller who has one is passed on all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.common.errors import HalogenError
from services.common.telemetry.attributes import ERROR_TYPE
from services.common.telemetry.exporter_choice import ExporterKind, choose_exporter

if TYPE_CHECKING:
    from opentelemetry.util.types import Attributes

SCOPE: Final = "halogen"
_PARENT_KEY: Final = "traceparent"
_WIRE: Final = TraceContextTextMapPropagator()
_NOWHERE: Final = Context()
_NONE: Final[Mapping[str, str | int]] = MappingProxyType({})

# One process has one tracer; a test that runs several roles in one loop gives each its own.
_tracer: contextvars.ContextVar[Tracer | None] = contextvars.ContextVar("tracer", default=None)
_applications: Final = trace.get_tracer(
    SCOPE
)  # where our client is a library: whatever its application set up


@contextlib.contextmanager
def exporting(role: str, instance: str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Exports this role's spans while the scope lasts, if the OTEL_* variables ask for it; the end flushes.

    Args:
        role: The service is called ``halogen-ROLE`` unless OTEL_SERVICE_NAME says otherwise.
        instance: Tells this process from others of its role.
        environ: Where to look for the variables that decide whether; the SDK reads the others itself.
    """
    kind = choose_exporter(environ)
    if kind is ExporterKind.NONE:
        yield
        return
    from services.common.telemetry import otlp  # noqa: PLC0415  # the SDK is loaded by those who use it

    with otlp.provider(kind, f"halogen-{role}", instance) as provider:
        if provider is None:
            yield
            return
        with using(provider.get_tracer(SCOPE)):
            yield


@contextlib.contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Spans that begin in this scope, and in the tasks begun there, are made by `tracer`."""
    token = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(token)


def start_span(
    name: str,
    attributes: Attributes = None,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    start_ns: int | None = None,
) -> Span:
    """A span that the caller ends; a child of `parent`, or of the current span. Where nobody makes any, that itself.

    Args:
        name: One of few: what varies belongs into the attributes.
        attributes: Named in `attributes`.
        parent: None for the current span.
        kind: Which side of a call it is, if it is one.
        start_ns: Unix time; None for now.
    """
    if (tracer := _maker()) is None:
        return trace.get_current_span(parent)
    return tracer.start_span(name, parent, kind, attributes, start_time=start_ns)


@contextlib.contextmanager
def span(
    name: str,
    attributes: Attributes = None,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Iterator[Span]:
    """A span that is current while the scope lasts and ends with it, its status telling how.

    Not for the body of an async generator: there it would be current for the reader, too.
    """
    opened = start_span(name, attributes, parent=parent, kind=kind)
    if opened is trace.get_current_span():
        yield opened  # nobody makes spans here
        return
    with current(opened):
        try:
            yield opened
        except BaseException as failure:
            note_failure(opened, failure)
            raise
        finally:
            opened.end()


@contextlib.contextmanager
def current(opened: Span) -> Iterator[None]:
    """Makes a span the current one while the scope lasts."""
    token = attach(trace.set_span_in_context(opened))
    try:
        yield
    finally:
        detach(token)


def _maker() -> Tracer | None:
    """Who makes spans here, if anybody does."""
    if tracer := _tracer.get():
        return tracer
    is_asked_for = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return _applications if is_asked_for else None


def note_failure(failed: Span, failure: BaseException) -> None:
    """Sets the status that `failure` means."""
    if isinstance(failure, HalogenError):
        set_failed(failed, failure.reason, failure.message)
    elif isinstance(failure, asyncio.CancelledError | GeneratorExit):
        set_failed(failed, "CANCELLED", "whoever asked for it has left")
    else:
        failed.record_exception(failure)
        set_failed(failed, type(failure).__name__, "an unexpected failure")


def set_failed(failed: Span, reason: str, message: str, more: Mapping[str, str | int] = _NONE) -> None:
    """The span's work did not come to its end, for this reason (UPPER_SNAKE); the first word on it counts."""
    status = getattr(failed, "status", None)  # the API has no way to ask
    if status is not None and status.status_code is not StatusCode.UNSET:
        return
    failed.set_attributes({**more, ERROR_TYPE: reason})
    failed.set_status(StatusCode.ERROR, message)


def set_complete(done: Span) -> None:
    """The span's work came to its end: whatever befalls its call from here on, its status stays."""
    done.set_status(StatusCode.OK)


def annotate(attributes: Mapping[str, str | int | float | list[str]]) -> None:
    """Says more about the current span, if it is recorded."""
    if (opened := trace.get_current_span()).is_recording():
        opened.set_attributes(attributes)


class Carrier(NamedTuple):
    """A key and a value of W3C trace context."""

    key: str
    value: str


def outgoing() -> tuple[Carrier, ...]:
    """What a call carries so that its other side goes on with this trace; nothing where there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ()
    carried: dict[str, str] = {}
    _WIRE.inject(carried)
    return tuple(Carrier(*pair) for pair in carried.items())


def incoming(metadata: Iterable[tuple[str, str | bytes]]) -> Context:
    """Where a call's trace goes on: with its caller's, or nowhere yet."""
    for key, _ in metadata:
        if key == _PARENT_KEY:
            return _WIRE.extract(dict(metadata), _NOWHERE)
    return _NOWHERE


def trace_parent() -> str:
    """The current span as text, for a record by which others go on with its trace; empty where there is none."""
    return dict(outgoing()).get(_PARENT_KEY, "")


def going_on_from(parent: str) -> Context:
    """Where work goes on that a record of `trace_parent` has caused; text that is none starts a trace of its own."""
    return _WIRE.extract({_PARENT_KEY: parent}, _NOWHERE)
