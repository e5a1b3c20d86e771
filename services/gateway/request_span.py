"""What the span of a request tells: what was asked for, what became of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span

from services.common.completion import FinishReason
from services.common.telemetry import attributes
from services.common.telemetry.tracing import set_complete
from services.gateway.answer import Answer
from services.gateway.request import ChatPrompt, Request

_COMPLETE: Final = frozenset(reason.value for reason in FinishReason)


@contextlib.contextmanager
def described(request: Request, answer: Answer) -> Iterator[None]:
    """Tells at the scope's end, on the span that is current there, however far the answer has come."""
    try:
        yield
    finally:
        span = trace.get_current_span()
        if span.is_recording():
            _describe(span, request, answer)


def _describe(span: Span, request: Request, answer: Answer) -> None:
    span.set_attributes(dict(_asked(request)))
    span.set_attributes(dict(_answered(answer)))
    if answer.outcome in _COMPLETE:
        span.set_attribute(attributes.FINISH_REASONS, [answer.outcome])
        set_complete(span)


def _asked(request: Request) -> Iterator[tuple[str, str | int | float]]:
    is_chat = isinstance(request.prompt, ChatPrompt)
    yield attributes.OPERATION, attributes.CHAT if is_chat else attributes.TEXT_COMPLETION
    yield attributes.PROVIDER, attributes.PROVIDER_NAME
    yield attributes.REQUEST_ID, request.request_id
    yield attributes.RESPONSE_ID, request.request_id
    yield attributes.REQUEST_MODEL, request.model


def _answered(answer: Answer) -> Iterator[tuple[str, str | int | float]]:
    yield attributes.INPUT_TOKENS, answer.usage.prompt_tokens
    yield attributes.CACHED_TOKENS, answer.usage.cached_tokens
    yield attributes.OUTPUT_TOKENS, answer.usage.completion_tokens
    if (source := answer.provenance) is None:
        return
    yield attributes.RESPONSE_MODEL, source.model
    yield attributes.COHORT, source.cohort
    yield attributes.ARTIFACT_ID, source.artifact_id
    yield attributes.REVISION, source.revision
    yield attributes.ENGINE_ID, source.engine_id
    yield attributes.REQUEST_MAX_TOKENS, source.sampling.max_tokens
    yield attributes.REQUEST_TEMPERATURE, source.sampling.temperature
    yield attributes.REQUEST_TOP_K, source.sampling.top_k
    yield attributes.REQUEST_TOP_P, source.sampling.top_p
