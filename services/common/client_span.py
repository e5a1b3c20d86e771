"""The span of a completion, on the side of the client that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from opentelemetry.trace import SpanKind

from services.common.completion import Chunk
from services.common.telemetry import attributes
from services.common.telemetry.tracing import current, note_failure, set_complete, start_span

R = TypeVar("R")

_ASKED: Final = {
    "request_id": attributes.REQUEST_ID,
    "model": attributes.REQUEST_MODEL,
    "max_tokens": attributes.REQUEST_MAX_TOKENS,
    "temperature": attributes.REQUEST_TEMPERATURE,
    "top_k": attributes.REQUEST_TOP_K,
    "top_p": attributes.REQUEST_TOP_P,
}


class RequestSpan:
    """Lasts from the first read of an answer's stream to its end, whatever that is.

    It is never current, except while a call is started: the reader's own spans are not its children.

    Args:
        operation: What it is called by the conventions for generative AI.
        address: host:port of the gateway.
        options: What was said about the completion.
    """

    def __init__(self, operation: str, address: str, options: Mapping[str, Any]) -> None:
        self._operation = operation
        self._address = address
        self._options = options
        self._output_tokens = 0

    def __enter__(self) -> Self:
        name = f"{self._operation} {self._options.get('model', '')}".strip()
        self._span = start_span(name, kind=SpanKind.CLIENT)
        if self._span.is_recording():
            self._span.set_attributes(self._asked())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            note_failure(self._span, value)
        self._span.set_attribute(attributes.OUTPUT_TOKENS, self._output_tokens)
        self._span.end()

    def carry(self, start: Callable[[float | None], R], timeout_s: float | None) -> R:
        """Starts a call as part of this span."""
        with current(self._span):
            return start(timeout_s)

    def see(self, chunk: Chunk) -> Chunk:
        """Counts what has come, and notes what the last chunk says."""
        self._output_tokens += len(chunk.token_ids)
        if chunk.finish_reason is not None:
            self._span.set_attributes(_answered(chunk))
            set_complete(self._span)
        return chunk

    def _asked(self) -> dict[str, Any]:
        host, _, port = self._address.rpartition(":")
        said = {name: self._options[option] for option, name in _ASKED.items() if option in self._options}
        return said | {
            attributes.OPERATION: self._operation,
            attributes.PROVIDER: attributes.PROVIDER_NAME,
            attributes.SERVER_ADDRESS: host,
            attributes.SERVER_PORT: int(port) if port.isdecimal() else 0,
        }


def _answered(last: Chunk) -> dict[str, Any]:
    assert last.finish_reason is not None
    said: dict[str, Any] = {
        attributes.FINISH_REASONS: [last.finish_reason.value],
        attributes.RESPONSE_ID: last.request_id,
    }
    if last.usage is not None:
        said[attributes.INPUT_TOKENS] = last.usage.prompt_tokens
    if last.provenance is not None:
        said[attributes.RESPONSE_MODEL] = last.provenance.model
    return said
