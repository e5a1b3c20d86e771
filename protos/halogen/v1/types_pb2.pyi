import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORTED: _ClassVar[FinishReason]

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_FETCH: _ClassVar[Stage]
    STAGE_DIGEST: _ClassVar[Stage]
    STAGE_GRAPH: _ClassVar[Stage]
    STAGE_GUARD: _ClassVar[Stage]
    STAGE_ALLOCATION: _ClassVar[Stage]
    STAGE_WARM_UP: _ClassVar[Stage]
    STAGE_SWAP: _ClassVar[Stage]
    STAGE_COMMIT: _ClassVar[Stage]
    STAGE_PUSH: _ClassVar[Stage]
    STAGE_TEXT: _ClassVar[Stage]

class GenerationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_STATE_UNSPECIFIED: _ClassVar[GenerationState]
    GENERATION_STATE_FETCHING: _ClassVar[GenerationState]
    GENERATION_STATE_WARMING: _ClassVar[GenerationState]
    GENERATION_STATE_ACTIVE: _ClassVar[GenerationState]
    GENERATION_STATE_DRAINING: _ClassVar[GenerationState]
    GENERATION_STATE_RETIRED: _ClassVar[GenerationState]
    GENERATION_STATE_FAILED: _ClassVar[GenerationState]
    GENERATION_STATE_VERIFYING: _ClassVar[GenerationState]
    GENERATION_STATE_ALLOCATING: _ClassVar[GenerationState]
    GENERATION_STATE_SUPERSEDED: _ClassVar[GenerationState]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORTED: FinishReason
STAGE_UNSPECIFIED: Stage
STAGE_FETCH: Stage
STAGE_DIGEST: Stage
STAGE_GRAPH: Stage
STAGE_GUARD: Stage
STAGE_ALLOCATION: Stage
STAGE_WARM_UP: Stage
STAGE_SWAP: Stage
STAGE_COMMIT: Stage
STAGE_PUSH: Stage
STAGE_TEXT: Stage
GENERATION_STATE_UNSPECIFIED: GenerationState
GENERATION_STATE_FETCHING: GenerationState
GENERATION_STATE_WARMING: GenerationState
GENERATION_STATE_ACTIVE: GenerationState
GENERATION_STATE_DRAINING: GenerationState
GENERATION_STATE_RETIRED: GenerationState
GENERATION_STATE_FAILED: GenerationState
GENERATION_STATE_VERIFYING: GenerationState
GENERATION_STATE_ALLOCATING: GenerationState
GENERATION_STATE_SUPERSEDED: GenerationState

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop_token_ids", "ignore_eos", "logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: bool
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[bool] = ...) -> None: ...

class TokenUsage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("ticket_id", "engine_instance_id", "artifact_id", "reserved_bytes", "term", "expire_time", "mac")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    engine_instance_id: str
    artifact_id: str
    reserved_bytes: int
    term: int
    expire_time: _timestamp_pb2.Timestamp
    mac: bytes
    def __init__(self, ticket_id: _Optional[str] = ..., engine_instance_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., reserved_bytes: _Optional[int] = ..., term: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("model", "cohort", "artifact_id", "revision", "engine_id", "runtime_build", "sampling")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_BUILD_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    artifact_id: str
    revision: int
    engine_id: str
    runtime_build: str
    sampling: SamplingParams
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., artifact_id: _Optional[str] = ..., revision: _Optional[int] = ..., engine_id: _Optional[str] = ..., runtime_build: _Optional[str] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ...) -> None: ...
