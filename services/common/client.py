"""A client for users: asks a gateway for completions.

::

    async with Client("127.0.0.1:50051") as client:
        async for chunk in client.generate("Once upon a time", max_tokens=64, timeout_s=30):
            print(chunk.text, end="")
        answer = await client.chat([{"role": "user", "content": "Who are you?"}]).complete()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, Unpack

import grpc

from halogen.v1 import inference_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.inference_pb2_grpc import InferenceServiceStub
from services.common.client_options import Options, check_messages, check_text, check_token_ids, checked
from services.common.client_span import RequestSpan
from services.common.completion import Chunk, Completion
from services.common.completion_messages import chunk_of
from services.common.deadline import Deadline
from services.common.errors import Cancelled, HalogenError, InternalError, Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.rpc.client import connect
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint, Peer
from services.common.rpc.status import PUSHBACK_KEY, from_rpc_error
from services.common.telemetry.attributes import CHAT, TEXT_COMPLETION

if TYPE_CHECKING:
    from halogen.v1.inference_pb2_grpc import InferenceServiceAsyncStub

MAX_TRIES: Final = 4
_UNARY_S: Final = 10.0
_DROPPED_S: Final = 0.1


class ServedModel(NamedTuple):
    """A model@cohort that can be asked for."""

    model: ModelName
    cohort: Cohort
    artifact_id: ArtifactId
    revision: Revision
    max_context_tokens: int


class Client:
    """A connection to one gateway, as a context manager; leaving it cancels what is still running.

    Args:
        gateway: host:port of the gateway; or that with the credentials that are shown to it.
        token: A bearer token that is shown to it, where it asks for one.
        ca_file: Certificates of the authority that vouches for it (PEM); turns TLS on.
        max_tries: How often a completion may be asked for before its first chunk, when the server says that
            and when to come back. 1 never tries again.
    """

    def __init__(
        self, gateway: Peer, *, token: str = "", ca_file: Path | None = None, max_tries: int = MAX_TRIES
    ) -> None:
        address, credentials = Endpoint.of(gateway)
        said = Credentials.of(token=token, ca_file=ca_file) if token or ca_file else credentials
        self._gateway = Endpoint(address, said)
        self._max_tries = max_tries
        self._open_stub: InferenceServiceAsyncStub | None = None

    async def __aenter__(self) -> Self:
        self._channel = connect(self._gateway)
        self._open_stub = InferenceServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()
        self._open_stub = None

    @property
    def _stub(self) -> InferenceServiceAsyncStub:
        if self._open_stub is None:
            raise RuntimeError("the client is not open: use it as `async with Client(address) as client:`")
        return self._open_stub

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> CompletionStream:
        """Continues a text, or token ids. Nothing is sent before the stream is read.

        Raises:
            InvalidRequest: The prompt or an option cannot be sent.
        """
        options = checked(options)
        request = pb.GenerateRequest(
            request_id=options.get("request_id", ""),
            model=options.get("model", ""),
            cohort=options.get("cohort", ""),
            sampling=_sampling_params(options),
            stop=options.get("stop", ()),
            cache_salt=options.get("cache_salt", ""),
        )
        if isinstance(prompt, str):
            check_text("prompt", prompt)
            request.text = prompt
        else:
            check_token_ids("prompt", prompt)
            request.token_ids.ids.extend(prompt)
        return self._stream(
            lambda timeout_s: self._stub.Generate(request, timeout=timeout_s), TEXT_COMPLETION, options
        )

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[Options]) -> CompletionStream:
        """Answers a conversation: messages with a "role" and a "content".

        Raises:
            InvalidRequest: A message or an option cannot be sent.
        """
        options = checked(options)
        check_messages(messages)
        request = pb.ChatRequest(
            request_id=options.get("request_id", ""),
            model=options.get("model", ""),
            cohort=options.get("cohort", ""),
            messages=[pb.ChatMessage(role=each["role"], content=each["content"]) for each in messages],
            sampling=_sampling_params(options),
            stop=options.get("stop", ()),
            cache_salt=options.get("cache_salt", ""),
        )
        return self._stream(lambda timeout_s: self._stub.Chat(request, timeout=timeout_s), CHAT, options)

    async def abort(self, request_id: str) -> bool:
        """Ends a running request, of this client or another; tells whether there was one."""
        try:
            answer = await self._stub.Abort(pb.AbortRequest(request_id=request_id), timeout=_UNARY_S)
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        return answer.found

    async def list_models(self) -> list[ServedModel]:
        """What can be asked for now."""
        try:
            answer = await self._stub.ListModels(pb.ListModelsRequest(), timeout=_UNARY_S)
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        return [
            ServedModel(
                ModelName(each.model),
                Cohort(each.cohort),
                ArtifactId(each.artifact_id),
                Revision(each.revision),
                each.max_context_tokens,
            )
            for each in answer.models
        ]

    def _stream(self, start: _Start, operation: str, options: Options) -> CompletionStream:
        span = RequestSpan(operation, self._gateway.address, options)
        return CompletionStream(_chunks(start, options.get("timeout_s"), self._max_tries, span))


class CompletionStream:
    """An answer on its way: iterate over its chunks once, or await all of it.

    Leaving the loop ends the request. To be sure that it has ended when a block is left, whatever keeps a
    reference to the stream, use it as a context manager.

    Iterating raises the errors of `services.common.errors`. It ends without one only after a chunk with a
    finish_reason.
    """

    def __init__(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the request if it has not ended."""
        await self._chunks.aclose()

    async def complete(self) -> Completion:
        """The whole answer."""
        async with self:
            return Completion.of([chunk async for chunk in self])


class _Response(Protocol):
    @property
    def chunk(self) -> pb.CompletionChunk: ...


class _Call(AsyncIterable[_Response], Protocol):
    def cancel(self) -> bool: ...


_Start = Callable[[float | None], _Call]


async def _chunks(
    start: _Start, timeout_s: float | None, max_tries: int, span: RequestSpan
) -> AsyncGenerator[Chunk, None]:
    """Yields the chunks of the first call that has any; holds no reference to its stream, so that dropping ends it."""
    deadline = Deadline.after(timeout_s)
    with span:
        for tries_left in reversed(range(max_tries)):
            call, begun = span.carry(start, deadline.remaining_s()), False
            try:
                async for response in call:
                    begun = True
                    yield (chunk := span.see(chunk_of(response.chunk)))
                    if chunk.finish_reason is not None:
                        return
                raise InternalError("the gateway ended the answer without a last chunk; ask again")
            except grpc.aio.AioRpcError as failure:
                error, pause_s = from_rpc_error(failure), _pushback_s(failure)
                if isinstance(error, Cancelled):
                    error, pause_s = _dropped(), _DROPPED_S
                if begun or not tries_left or pause_s is None or not deadline.allows(pause_s):
                    raise error from failure
            except asyncio.CancelledError:
                raise _whose_cancellation() from None
            finally:
                call.cancel()
            await asyncio.sleep(pause_s)


def _pushback_s(failure: grpc.aio.AioRpcError) -> float | None:
    """When the server wants to be asked again; None when it does not."""
    value = dict(failure.trailing_metadata() or ()).get(PUSHBACK_KEY)
    if not isinstance(value, str) or not value.isdecimal():  # a negative number says: do not
        return None
    return int(value) / 1e3


def _dropped() -> HalogenError:
    """A call that neither side's code has cancelled: it came while the server closed its door."""
    return Unavailable("the gateway ended in the middle of the call; ask again", retry_after_s=_DROPPED_S)


def _whose_cancellation() -> BaseException:
    """A call that was cancelled although the reading task was not: the client has been closed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return Cancelled("the client was closed while the answer was on its way")


def _sampling_params(options: Options) -> types_pb2.SamplingParams:
    return types_pb2.SamplingParams(
        temperature=options.get("temperature"),
        top_k=options.get("top_k"),
        top_p=options.get("top_p"),
        seed=options.get("seed"),
        max_tokens=options.get("max_tokens"),
        stop_token_ids=options.get("stop_token_ids"),
        ignore_eos=options.get("ignore_eos"),
        logprobs=options.get("logprobs"),
    )
