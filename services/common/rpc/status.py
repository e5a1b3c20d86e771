"""The table from our errors to gRPC statuses, and back: one interceptor on servers, one function for clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import StatusCode
from opentelemetry.trace import Span

from services.common import errors
from services.common.rpc.entrance import Entrance
from services.common.rpc.in_flight import Call, InFlight
from services.common.rpc.server_span import server_span, set_status

DOMAIN: Final = "halogen"
UNREACHABLE: Final = "UNREACHABLE"  # the reason where no peer said anything
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
_MAX_MESSAGE: Final = (
    1024  # characters; trailing metadata is bounded by the peers, and callers' words can be long
)
_MAX_VALUE: Final = 256
LAST_WORDS_S: Final = 1.0  # for a status to go out
_DETAILS_KEY: Final = "grpc-status-details-bin"

_CODES: Final[dict[type[errors.HalogenError], StatusCode]] = {
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.AlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.Conflict: StatusCode.ABORTED,
    errors.PreconditionFailed: StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.DeadlinePassed: StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: StatusCode.CANCELLED,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.Unsupported: StatusCode.UNIMPLEMENTED,
    errors.CorruptData: StatusCode.DATA_LOSS,
    errors.InternalError: StatusCode.INTERNAL,
}
_ERRORS: Final = {code: kind for kind, code in _CODES.items()}

log = structlog.get_logger()


class _Status(NamedTuple):
    code: StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def _pack(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def to_status(error: errors.HalogenError) -> _Status:
    """The status of `error`, with google.rpc.ErrorInfo and, where a retry may help, RetryInfo and pushback."""
    message, metadata = error.message[:_MAX_MESSAGE], {k: v[:_MAX_VALUE] for k, v in error.metadata.items()}
    code = next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message, details=[_pack(info)])
    trailing: list[tuple[str, str | bytes]] = []
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
        trailing.append((PUSHBACK_KEY, str(int(error.retry_after_s * 1e3))))
    trailing.append((_DETAILS_KEY, status.SerializeToString()))
    return _Status(code, message, tuple(trailing))


def from_rpc_error(failure: grpc.aio.AioRpcError) -> errors.HalogenError:
    """The error that a peer's status stands for; a status of another origin keeps its code and text."""
    kind = _ERRORS.get(failure.code(), errors.InternalError)
    message = failure.details() or failure.code().name
    metadata = dict(failure.trailing_metadata() or ())
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    reason, retry_after_s = "", None
    if raw := metadata.get(_DETAILS_KEY):
        for detail in status_pb2.Status.FromString(raw if isinstance(raw, bytes) else raw.encode()).details:
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    elif kind is errors.Unavailable:
        reason, retry_after_s = UNREACHABLE, 1.0  # the transport's own: the peer is starting or gone
    elif kind is errors.DeadlinePassed:  # the same: its words are about streams
        message = "the time that was given for it is over; give it more, or ask when there is less to do"
    return kind(message, reason=reason or None, metadata=info.metadata, retry_after_s=retry_after_s)


def _seen(failure: Exception, method: str) -> errors.HalogenError:
    if isinstance(failure, errors.HalogenError):
        return failure
    if isinstance(failure, grpc.aio.AioRpcError):
        return from_rpc_error(failure)
    log.error("unexpected_failure", method=method, exc_info=failure)
    return errors.InternalError("an unexpected failure; the server's log has the details")


def _told(span: Span, error: errors.HalogenError) -> _Status:
    """The call's status, said to its span too."""
    status = to_status(error)
    set_status(span, status.code, status.details, error.reason)
    return status


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status; a fault of ours tells the caller nothing of its insides.

    It also keeps the calls under way, so that a server can refuse, end, and wait for its work, and asks callers who they
    are before their messages are parsed.
    """

    def __init__(self, in_flight: InFlight, entrance: Entrance) -> None:
        self._in_flight = in_flight
        self._entrance = entrance

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler  # grpc's own reflection
        method, serialize = handler_call_details.method, handler.response_serializer
        if handler.response_streaming:
            guarded = self._guard_stream(handler, method)
            return grpc.unary_stream_rpc_method_handler(guarded, response_serializer=serialize)
        guarded = self._guard_unary(handler, method)
        return grpc.unary_unary_rpc_method_handler(guarded, response_serializer=serialize)

    def _guard_unary(self, handler: Any, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            async with self._guard(method, context):
                request = _parsed(request, handler.request_deserializer)
                return await handler.unary_unary(request, context)

        return guarded

    def _guard_stream(self, handler: Any, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> None:
            """Writes by itself, so that a write that hangs is within the guard."""
            async with self._guard(method, context) as call:
                request = _parsed(request, handler.request_deserializer)
                responses = handler.unary_stream(request, context)
                if call.is_watch:
                    responses = self._asking_again(responses, method, context)
                await _send(responses, call, context)

        return guarded

    async def _asking_again(
        self, responses: AsyncGenerator[Any, None], method: str, context: Any
    ) -> AsyncGenerator[Any, None]:
        """The same, for as long as the caller's credential is taken: a watch has no end of its own."""
        async with contextlib.aclosing(responses):
            async for response in responses:
                self._entrance.ask_again(method, context)
                yield response

    @contextlib.asynccontextmanager
    async def _guard(self, method: str, context: Any) -> AsyncIterator[Call]:
        with self._in_flight.track(method) as call, server_span(method, context) as span:
            try:
                with self._entrance.entered(method, context):
                    self._in_flight.check(call)
                    async with call.under_way():
                        yield call
            except Exception as failure:  # noqa: BLE001  # the boundary: nothing may pass it unmapped
                await _abort(context, _told(span, _seen(failure, method)))


def _parsed(message: bytes, deserialize: Callable[[bytes], Any] | None) -> Any:
    try:
        return deserialize(message) if deserialize else message
    except DecodeError:
        raise errors.InvalidRequest(
            "the message is not one that this method takes; make stubs from this server's protos",
            reason="MESSAGE_MALFORMED",
        ) from None


async def _send(responses: AsyncGenerator[Any, None], call: Call, context: Any) -> None:
    """Writes them all, each as soon as it is there."""
    async with contextlib.aclosing(responses):
        async for response in responses:
            with call.sending():
                await context.write(response)


async def _abort(context: Any, status: _Status) -> None:
    """Sends a status; a reader that takes nothing does not take that either, and is not waited for."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await context.abort_with_status(status)
    except TimeoutError:
        raise asyncio.CancelledError from None  # the status stays with the transport
