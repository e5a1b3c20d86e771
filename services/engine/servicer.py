"""EngineService: translates between the wire and the engine; decides nothing."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from halogen.v1 import engine_pb2, engine_pb2_grpc, types_pb2
from services.common.errors import HalogenError, InvalidRequest
from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.kv import BLOCK_TOKENS, expected_blocks
from services.common.telemetry.attributes import ARTIFACT_ID, ENGINE_ID, REQUEST_ID, TICKET_ID
from services.common.telemetry.tracing import annotate
from services.common.ticket import Ticket
from services.engine.engine import Engine
from services.engine.generation_spans import generation_spans
from services.engine.generations import Generations
from services.engine.lender import LoadedModel
from services.engine.occupancy import Delta, LiveTicket, ResidentGeneration, Snapshot
from services.engine.sequence import TokenRequest
from services.engine.stepper import FinishReason
from services.engine.ticket_gate import TicketGate
from services.engine.token_stream import Piece, TokenStream
from services.engine.validation import AskedRequest, validate

_FINISH: Final = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}
Context = grpc.aio.ServicerContext
Responses = AsyncIterator[engine_pb2.GenerateTokensResponse]


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Serves one engine.

    Args:
        engine: Runs requests.
        generations: Knows which artifacts are here.
        gate: Redeems tickets.
        engine_id: For provenance.
        instance_id: This start of the process.
        runtime_build: For provenance.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        generations: Generations,
        gate: TicketGate,
        engine_id: ProcessId,
        instance_id: InstanceId,
        runtime_build: str,
    ) -> None:
        self._engine = engine
        self._generations = generations
        self._gate = gate
        self._engine_id = engine_id
        self._instance_id = instance_id
        self._runtime_build = runtime_build

    async def GenerateTokens(
        self,
        request: engine_pb2.GenerateTokensRequest,
        context: Context[engine_pb2.GenerateTokensRequest, engine_pb2.GenerateTokensResponse],
    ) -> Responses:
        remaining_s = context.time_remaining()
        deadline = math.inf if remaining_s is None else time.monotonic() + remaining_s
        ticket = _ticket(request.ticket)
        annotate({**_named(request), ENGINE_ID: self._engine_id})
        self._gate.redeem(ticket, request.ticket.mac, time.time_ns())
        async with contextlib.AsyncExitStack() as scope:
            with self._closing_if_refused(ticket), self._generations.borrow(ticket.artifact_id) as held:
                asked = _validate(request, held.model, ticket, deadline)
                stream = await scope.enter_async_context(
                    self._engine.run(held.lender, asked, ticket.id, ticket.reserved_bytes)
                )
            scope.enter_context(generation_spans(stream, len(asked.prompt)))
            is_first = True
            async for piece in stream:
                response = _response(piece)
                if is_first or piece.finish is not None:
                    self._sign(response, ticket.artifact_id, held.model)
                    response.usage.CopyFrom(_usage(stream, len(asked.prompt)))
                is_first = False
                yield response

    async def WatchOccupancy(
        self,
        request: engine_pb2.WatchOccupancyRequest,
        context: Context[engine_pb2.WatchOccupancyRequest, engine_pb2.WatchOccupancyResponse],
    ) -> AsyncIterator[engine_pb2.WatchOccupancyResponse]:
        async with contextlib.aclosing(self._engine.occupancy.watch()) as messages:
            async for message in messages:
                response = engine_pb2.WatchOccupancyResponse(engine_instance_id=self._instance_id)
                if isinstance(message, Snapshot):
                    response.snapshot.CopyFrom(_snapshot(message, self._engine.occupancy.max_tickets))
                    response.snapshot.engine_id = self._engine_id
                else:
                    response.delta.CopyFrom(_delta(message))
                yield response

    @contextlib.contextmanager
    def _closing_if_refused(self, ticket: Ticket) -> Iterator[None]:
        """A redeemed ticket is spent, also when its request is turned down: schedulers hear so at once."""
        try:
            yield
        except HalogenError:
            self._engine.occupancy.close(ticket.id)
            raise

    def _sign(
        self, response: engine_pb2.GenerateTokensResponse, artifact_id: ArtifactId, model: LoadedModel
    ) -> None:
        """Says what the answer comes from: another layout of the same weights may give other bits."""
        layout = model.built.layout if model.built else ""
        response.engine_id = self._engine_id
        response.artifact_id = artifact_id
        response.runtime_build = f"{self._runtime_build} {layout}".rstrip()


def _ticket(message: types_pb2.Ticket) -> Ticket:
    return Ticket(
        id=TicketId(message.ticket_id),
        engine_instance_id=InstanceId(message.engine_instance_id),
        artifact_id=ArtifactId(message.artifact_id),
        reserved_bytes=message.reserved_bytes,
        term=message.term,
        expire_time_ns=_nanoseconds(message.expire_time),
    )


def _named(request: engine_pb2.GenerateTokensRequest) -> dict[str, str]:
    """What the request is about, for its span."""
    return {
        REQUEST_ID: request.request_id.partition("/")[0],
        TICKET_ID: request.ticket.ticket_id,
        ARTIFACT_ID: request.ticket.artifact_id,
    }


def _nanoseconds(time_: Timestamp) -> int:
    """Unix time; 0, which no signed ticket has, for what is no time or before 1970."""
    try:
        return max(0, time_.ToNanoseconds())
    except ValueError:
        return 0


def _asked(request: engine_pb2.GenerateTokensRequest) -> AskedRequest:
    sampling = request.sampling
    return AskedRequest(
        request_id=request.request_id,
        prompt=tuple(request.prompt_token_ids),
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        stop_token_ids=tuple(sampling.stop_token_ids),
        logprobs=sampling.logprobs,
        cache_salt=request.cache_salt,
        tenant=request.tenant,
    )


def _validate(
    request: engine_pb2.GenerateTokensRequest, model: LoadedModel, ticket: Ticket, deadline: float
) -> TokenRequest:
    asked = validate(
        _asked(request),
        vocab_size=model.vocab_size,
        max_context_tokens=model.max_context_tokens,
        deadline=deadline,
    )
    least = expected_blocks(len(asked.prompt), asked.sampling.max_tokens, BLOCK_TOKENS, expected_tokens=1)
    _check_size(least * model.block_bytes, ticket)
    return asked


def _check_size(needed_bytes: int, ticket: Ticket) -> None:
    if needed_bytes > ticket.reserved_bytes:
        raise InvalidRequest(
            f"the request needs at least {needed_bytes} bytes of KV memory, its ticket promises "
            f"{ticket.reserved_bytes}; ask for a ticket of the right size",
            reason="TICKET_TOO_SMALL",
        )


def _response(piece: Piece) -> engine_pb2.GenerateTokensResponse:
    finish_reason = None if piece.finish is None else _FINISH[piece.finish]
    return engine_pb2.GenerateTokensResponse(
        token_ids=piece.token_ids, logprobs=piece.logprobs, finish_reason=finish_reason
    )


def _usage(stream: TokenStream, prompt_tokens: int) -> types_pb2.TokenUsage:
    return types_pb2.TokenUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=stream.read_tokens,
        cached_tokens=stream.cached_tokens,
    )


def _snapshot(snapshot: Snapshot, max_tickets: int) -> engine_pb2.OccupancySnapshot:
    return engine_pb2.OccupancySnapshot(
        arena_bytes=snapshot.arena_bytes,
        tickets=map(_live_ticket, snapshot.tickets),
        generations=map(_resident, snapshot.generations),
        max_concurrent_requests=max_tickets,
    )


def _delta(delta: Delta) -> engine_pb2.OccupancyDelta:
    return engine_pb2.OccupancyDelta(
        tickets=map(_live_ticket, delta.tickets),
        closed_ticket_ids=delta.closed,
        generations=map(_resident, delta.generations or ()),
        generations_changed=delta.generations is not None,
        arena_bytes=delta.arena_bytes or 0,
    )


def _live_ticket(ticket: LiveTicket) -> engine_pb2.LiveTicket:
    return engine_pb2.LiveTicket(
        ticket_id=ticket.id,
        reserved_bytes=ticket.reserved_bytes,
        prompt_tokens=ticket.prompt_tokens,
        prefill_started=ticket.prefill_started,
    )


def _resident(generation: ResidentGeneration) -> engine_pb2.ResidentGeneration:
    return engine_pb2.ResidentGeneration(
        artifact_id=generation.artifact_id,
        state=f"GENERATION_STATE_{generation.state}",
        block_bytes=generation.block_bytes,
        block_tokens=generation.block_tokens,
        max_context_tokens=generation.max_context_tokens,
        expected_answer_tokens=generation.expected_answer_tokens,
    )
