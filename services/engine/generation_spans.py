"""What the span of GenerateTokens tells, and the spans of the request's stages below it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from opentelemetry import trace
from opentelemetry.trace import Span

from services.common.telemetry import attributes
from services.common.telemetry.tracing import set_complete, start_span
from services.engine.token_stream import TokenStream


@contextlib.contextmanager
def generation_spans(stream: TokenStream, prompt_tokens: int) -> Iterator[None]:
    """Tells, when the scope ends, how far the request has come; while tokens flow nothing is told.

    Args:
        stream: The request's.
        prompt_tokens: Of the request.
    """
    span = trace.get_current_span()
    try:
        yield
    finally:
        if span.is_recording():
            _tell_usage(span, stream, prompt_tokens)
            _tell_stages(span, stream)


def _tell_usage(span: Span, stream: TokenStream, prompt_tokens: int) -> None:
    span.set_attribute(attributes.INPUT_TOKENS, prompt_tokens)
    span.set_attribute(attributes.CACHED_TOKENS, stream.cached_tokens)
    span.set_attribute(attributes.OUTPUT_TOKENS, stream.read_tokens)
    if stream.finish is not None:
        span.set_attribute(attributes.FINISH_REASONS, [stream.finish.value])
        set_complete(span)


def _tell_stages(span: Span, stream: TokenStream) -> None:
    parent = trace.set_span_in_context(span)
    for stage in stream.timeline.stages(time.time_ns()):
        start_span(stage.name, parent=parent, start_ns=stage.begin_ns).end(stage.end_ns)
