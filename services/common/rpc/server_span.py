"""The span of a call that a server answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from services.common.telemetry import attributes
from services.common.telemetry.tracing import current, incoming, set_failed, start_span


@contextlib.contextmanager
def server_span(method: str, call: grpc.aio.ServicerContext[Any, Any]) -> Iterator[Span]:
    """Goes on with the caller's trace while the scope lasts, and ends however the call does.

    A watch has none: it is no work, and may last for weeks. Nor have the calls of grpc's own services.

    Args:
        method: ``/package.Service/Method``.
        call: Answered in the running task.
    """
    service, _, name = method.removeprefix("/").partition("/")
    if name.startswith("Watch") or not service.startswith("halogen."):
        yield trace.INVALID_SPAN
        return
    said = {attributes.RPC_SYSTEM: "grpc", attributes.RPC_SERVICE: service, attributes.RPC_METHOD: name}
    parent = incoming(call.invocation_metadata() or ())
    opened = start_span(f"{service}/{name}", said, parent=parent, kind=SpanKind.SERVER)
    if opened is trace.INVALID_SPAN:
        yield opened  # nobody makes spans here, and the caller has none
        return
    with current(opened):
        try:
            yield opened
        except (asyncio.CancelledError, GeneratorExit):
            set_status(opened, _why_cancelled(call), "the caller has left")
            raise
        finally:
            opened.end()


def set_status(answered: Span, code: grpc.StatusCode, message: str, reason: str = "") -> None:
    """The call has failed with `code`.

    Args:
        answered: The call's span.
        code: What its caller sees.
        message: For people.
        reason: For programs; the code's name when empty.
    """
    number: int = code.value[0]
    set_failed(answered, reason or code.name, message, {attributes.RPC_STATUS: number})


def _why_cancelled(call: grpc.aio.ServicerContext[Any, Any]) -> grpc.StatusCode:
    left_s = call.time_remaining()
    return grpc.StatusCode.CANCELLED if left_s is None or left_s > 0 else grpc.StatusCode.DEADLINE_EXCEEDED
