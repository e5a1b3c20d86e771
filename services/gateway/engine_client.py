"""Engines, over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from halogen.v1 import engine_pb2 as pb
from halogen.v1 import types_pb2
from halogen.v1.engine_pb2_grpc import EngineServiceStub
from services.common.completion import FinishReason, Sampling
from services.common.errors import InternalError
from services.common.ids import ArtifactId, ProcessId
from services.common.rpc.client import ChannelPool
from services.gateway.peer_failure import peer_failure
from services.gateway.ports import EngineMessage, Grant, TokenRequest
from services.gateway.request import MAX_REQUEST_ID_CHARS

_FINISH_REASONS: Final = {
    types_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    types_pb2.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


class EngineClients:
    """Implements `ports.Engines`; one kept channel per engine address."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    @contextlib.asynccontextmanager
    async def generate(
        self, request: TokenRequest, grant: Grant, timeout_s: float | None
    ) -> AsyncIterator[AsyncIterator[EngineMessage]]:
        stub = EngineServiceStub(self._channels.get(grant.engine_address))
        call = stub.GenerateTokens(_to_proto(request, grant), timeout=timeout_s)
        try:
            yield _messages(call, tells_logprobs=request.sampling.logprobs)
        finally:
            call.cancel()


async def _messages(
    call: AsyncIterable[pb.GenerateTokensResponse], *, tells_logprobs: bool
) -> AsyncIterator[EngineMessage]:
    try:
        async for message in call:
            if len(message.logprobs) != tells_logprobs * len(message.token_ids):
                raise _without_logprobs()
            yield _message(message)
    except grpc.aio.AioRpcError as failure:
        raise peer_failure(failure, "the engine") from failure


def _message(message: pb.GenerateTokensResponse) -> EngineMessage:
    return EngineMessage(
        tuple(message.token_ids),
        ProcessId(message.engine_id),
        ArtifactId(message.artifact_id),
        message.runtime_build,
        _FINISH_REASONS.get(message.finish_reason),
        message.usage.cached_tokens,
        tuple(message.logprobs),
    )


def _without_logprobs() -> InternalError:
    """Never one token's beside another: an engine of an older version tells none."""
    return InternalError(
        "the engine did not tell one logprob for each token: it may be of an older version; ask again without "
        "logprobs, or once all engines are of this one",
        reason="LOGPROBS_MISSING",
    )


def _to_proto(request: TokenRequest, grant: Grant) -> pb.GenerateTokensRequest:
    return pb.GenerateTokensRequest(
        ticket=_ticket(grant),
        request_id=_name_at_engine(request, grant),
        prompt_token_ids=request.prompt_token_ids,
        sampling=sampling_to_proto(request.sampling),
        cache_salt=request.cache_salt,
        tenant=request.tenant,
    )


def _name_at_engine(request: TokenRequest, grant: Grant) -> str:
    """The request's id and its ticket's: ids are unique per gateway, and free here before an engine has cleaned up."""
    ticket_id = f"/{grant.ticket.id}"
    return request.request_id[: MAX_REQUEST_ID_CHARS - len(ticket_id)] + ticket_id


def _ticket(grant: Grant) -> types_pb2.Ticket:
    ticket, expire_time = grant.ticket, Timestamp()
    expire_time.FromNanoseconds(ticket.expire_time_ns)
    return types_pb2.Ticket(
        ticket_id=ticket.id,
        engine_instance_id=ticket.engine_instance_id,
        artifact_id=ticket.artifact_id,
        reserved_bytes=ticket.reserved_bytes,
        term=ticket.term,
        expire_time=expire_time,
        mac=grant.mac,
    )


def sampling_to_proto(sampling: Sampling) -> types_pb2.SamplingParams:
    """The parameters on the wire, every scalar set."""
    return types_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
    )
