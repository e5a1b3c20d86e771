from halogen.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateTokensRequest(_message.Message):
    __slots__ = ("ticket", "request_id", "prompt_token_ids", "sampling", "cache_salt", "tenant")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ticket: _types_pb2.Ticket
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SamplingParams
    cache_salt: bytes
    tenant: str
    def __init__(self, ticket: _Optional[_Union[_types_pb2.Ticket, _Mapping]] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., tenant: _Optional[str] = ...) -> None: ...

class GenerateTokensResponse(_message.Message):
    __slots__ = ("token_ids", "engine_id", "artifact_id", "runtime_build", "finish_reason", "usage", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_BUILD_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    engine_id: str
    artifact_id: str
    runtime_build: str
    finish_reason: _types_pb2.FinishReason
    usage: _types_pb2.TokenUsage
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., engine_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., runtime_build: _Optional[str] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_types_pb2.TokenUsage, _Mapping]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class WatchOccupancyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchOccupancyResponse(_message.Message):
    __slots__ = ("engine_instance_id", "snapshot", "delta")
    ENGINE_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    engine_instance_id: str
    snapshot: OccupancySnapshot
    delta: OccupancyDelta
    def __init__(self, engine_instance_id: _Optional[str] = ..., snapshot: _Optional[_Union[OccupancySnapshot, _Mapping]] = ..., delta: _Optional[_Union[OccupancyDelta, _Mapping]] = ...) -> None: ...

class LiveTicket(_message.Message):
    __slots__ = ("ticket_id", "reserved_bytes", "prompt_tokens", "prefill_started")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_STARTED_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    reserved_bytes: int
    prompt_tokens: int
    prefill_started: bool
    def __init__(self, ticket_id: _Optional[str] = ..., reserved_bytes: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., prefill_started: _Optional[bool] = ...) -> None: ...

class ResidentGeneration(_message.Message):
    __slots__ = ("artifact_id", "state", "block_bytes", "block_tokens", "max_context_tokens", "expected_answer_tokens")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    state: _types_pb2.GenerationState
    block_bytes: int
    block_tokens: int
    max_context_tokens: int
    expected_answer_tokens: int
    def __init__(self, artifact_id: _Optional[str] = ..., state: _Optional[_Union[_types_pb2.GenerationState, str]] = ..., block_bytes: _Optional[int] = ..., block_tokens: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., expected_answer_tokens: _Optional[int] = ...) -> None: ...

class OccupancySnapshot(_message.Message):
    __slots__ = ("arena_bytes", "tickets", "generations", "max_concurrent_requests", "engine_id")
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    arena_bytes: int
    tickets: _containers.RepeatedCompositeFieldContainer[LiveTicket]
    generations: _containers.RepeatedCompositeFieldContainer[ResidentGeneration]
    max_concurrent_requests: int
    engine_id: str
    def __init__(self, arena_bytes: _Optional[int] = ..., tickets: _Optional[_Iterable[_Union[LiveTicket, _Mapping]]] = ..., generations: _Optional[_Iterable[_Union[ResidentGeneration, _Mapping]]] = ..., max_concurrent_requests: _Optional[int] = ..., engine_id: _Optional[str] = ...) -> None: ...

class OccupancyDelta(_message.Message):
    __slots__ = ("tickets", "closed_ticket_ids", "generations", "arena_bytes", "generations_changed")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_TICKET_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[LiveTicket]
    closed_ticket_ids: _containers.RepeatedScalarFieldContainer[str]
    generations: _containers.RepeatedCompositeFieldContainer[ResidentGeneration]
    arena_bytes: int
    generations_changed: bool
    def __init__(self, tickets: _Optional[_Iterable[_Union[LiveTicket, _Mapping]]] = ..., closed_ticket_ids: _Optional[_Iterable[str]] = ..., generations: _Optional[_Iterable[_Union[ResidentGeneration, _Mapping]]] = ..., arena_bytes: _Optional[int] = ..., generations_changed: _Optional[bool] = ...) -> None: ...
