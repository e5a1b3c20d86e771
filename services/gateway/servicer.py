"""InferenceService on the wire: translates, decides nothing.

Of a list that has a bound, one item more than the bound is taken over: that shows that it is passed, and
millions of them do not hold up the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from halogen.v1 import inference_pb2 as pb
from halogen.v1 import inference_pb2_grpc, types_pb2
from services.common.auth.principal import caller
from services.common.completion import Chunk, FinishReason, Provenance
from services.common.deadline import Deadline
from services.common.errors import InvalidRequest
from services.common.ids import ModelName, RequestId, fresh_id
from services.gateway.catalog import Catalog
from services.gateway.chat import Message
from services.gateway.completion import Completions
from services.gateway.contexts import Contexts
from services.gateway.engine_client import sampling_to_proto
from services.gateway.metrics import GatewayMetrics
from services.gateway.operator_words import checked_cohort
from services.gateway.request import (
    MAX_MESSAGES,
    MAX_PROMPT_TOKENS,
    MAX_STOPS,
    ChatPrompt,
    Prompt,
    Request,
    TextPrompt,
    TokenPrompt,
)
from services.gateway.running import Running
from services.gateway.sampling import MAX_STOP_TOKENS, SamplingAsked

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

_FINISH_REASONS: Final = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: types_pb2.FINISH_REASON_ABORTED,
}


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves completions and what the catalog holds."""

    def __init__(
        self,
        completions: Completions,
        catalog: Catalog,
        contexts: Contexts,
        running: Running,
        metrics: GatewayMetrics,
    ) -> None:
        self._completions = completions
        self._catalog = catalog
        self._contexts = contexts
        self._running = running
        self._metrics = metrics

    async def Generate(
        self, request: pb.GenerateRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        with self._metrics.refusing():
            asked = _request(request, _prompt(request))
        async with self._stream(asked, context) as chunks:
            async for chunk in chunks:
                yield pb.GenerateResponse(chunk=_chunk(chunk))

    async def Chat(
        self, request: pb.ChatRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ChatResponse]:
        some = request.messages[: MAX_MESSAGES + 1]
        messages = tuple(Message(message.role, message.content) for message in some)
        with self._metrics.refusing():
            asked = _request(request, ChatPrompt(messages))
        async with self._stream(asked, context) as chunks:
            async for chunk in chunks:
                yield pb.ChatResponse(chunk=_chunk(chunk))

    async def Abort(self, request: pb.AbortRequest, context: ServicerContext[Any, Any]) -> pb.AbortResponse:
        return pb.AbortResponse(found=self._running.abort(RequestId(request.request_id), _tenant()))

    async def ListModels(
        self, request: pb.ListModelsRequest, context: ServicerContext[Any, Any]
    ) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(
            models=[
                pb.ServedModel(
                    model=route.model,
                    cohort=route.cohort,
                    artifact_id=route.artifact_id,
                    revision=route.revision,
                    max_context_tokens=self._contexts.tokens(route.artifact_id, text.context_tokens),
                )
                for route, text in self._catalog.served()
            ]
        )

    def _stream(
        self, request: Request, context: ServicerContext[Any, Any]
    ) -> contextlib.aclosing[AsyncGenerator[Chunk, None]]:
        deadline = Deadline.after(context.time_remaining())
        return contextlib.aclosing(self._completions.stream(request, deadline))


def _prompt(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "token_ids":
            return TokenPrompt(tuple(request.token_ids.ids[: MAX_PROMPT_TOKENS + 1]))
        case _:
            raise InvalidRequest("there is no prompt; give text or token_ids", reason="PROMPT_EMPTY")


def _tenant() -> str:
    """The name of the caller's credential; empty where callers are not asked."""
    asker = caller()
    return asker.name if asker else ""


def _request(request: pb.GenerateRequest | pb.ChatRequest, prompt: Prompt) -> Request:
    return Request(
        request_id=RequestId(request.request_id or fresh_id("request")),
        model=ModelName(request.model),
        cohort=checked_cohort(request.cohort) if request.cohort else None,
        prompt=prompt,
        sampling=_sampling(request.sampling),
        stops=tuple(request.stop[: MAX_STOPS + 1]),
        cache_salt=request.cache_salt.encode(),
        tenant=_tenant(),
    )


def _sampling(params: types_pb2.SamplingParams) -> SamplingAsked:
    set_scalars = {
        field.name: value for field, value in params.ListFields() if field.name != "stop_token_ids"
    }
    stop_token_ids = tuple(params.stop_token_ids[: MAX_STOP_TOKENS + 1])
    return SamplingAsked(stop_token_ids=stop_token_ids, **set_scalars)


def _chunk(chunk: Chunk) -> pb.CompletionChunk:
    message = pb.CompletionChunk(
        request_id=chunk.request_id,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        text=chunk.text,
        matched_stop=chunk.matched_stop,
    )
    if chunk.provenance is not None:
        message.provenance.CopyFrom(_provenance(chunk.provenance))
    if chunk.finish_reason is not None:
        message.finish_reason = _FINISH_REASONS[chunk.finish_reason]
    if chunk.usage is not None:
        message.usage.prompt_tokens = chunk.usage.prompt_tokens
        message.usage.completion_tokens = chunk.usage.completion_tokens
        message.usage.cached_tokens = chunk.usage.cached_tokens
    return message


def _provenance(provenance: Provenance) -> types_pb2.Provenance:
    return types_pb2.Provenance(
        model=provenance.model,
        cohort=provenance.cohort,
        artifact_id=provenance.artifact_id,
        revision=provenance.revision,
        engine_id=provenance.engine_id,
        runtime_build=provenance.runtime_build,
        sampling=sampling_to_proto(provenance.sampling),
    )
