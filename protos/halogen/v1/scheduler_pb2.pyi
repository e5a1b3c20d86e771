from halogen.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GrantTicketRequest(_message.Message):
    __slots__ = ("request_id", "artifact_id", "prompt_tokens", "max_tokens", "ticket_id", "model", "cohort", "revision")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    artifact_id: str
    prompt_tokens: int
    max_tokens: int
    ticket_id: str
    model: str
    cohort: str
    revision: int
    def __init__(self, request_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., ticket_id: _Optional[str] = ..., model: _Optional[str] = ..., cohort: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class GrantTicketResponse(_message.Message):
    __slots__ = ("ticket", "engine_id", "engine_address")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ticket: _types_pb2.Ticket
    engine_id: str
    engine_address: str
    def __init__(self, ticket: _Optional[_Union[_types_pb2.Ticket, _Mapping]] = ..., engine_id: _Optional[str] = ..., engine_address: _Optional[str] = ...) -> None: ...

class ReleaseTicketRequest(_message.Message):
    __slots__ = ("ticket_id",)
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    def __init__(self, ticket_id: _Optional[str] = ...) -> None: ...

class ReleaseTicketResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOccupancyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineOccupancy(_message.Message):
    __slots__ = ("engine_id", "engine_instance_id", "arena_bytes", "promised_bytes", "tickets", "unstarted_prefill_tokens", "peak_occupancy")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMISED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    UNSTARTED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PEAK_OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    engine_instance_id: str
    arena_bytes: int
    promised_bytes: int
    tickets: int
    unstarted_prefill_tokens: int
    peak_occupancy: float
    def __init__(self, engine_id: _Optional[str] = ..., engine_instance_id: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., promised_bytes: _Optional[int] = ..., tickets: _Optional[int] = ..., unstarted_prefill_tokens: _Optional[int] = ..., peak_occupancy: _Optional[float] = ...) -> None: ...

class GetOccupancyResponse(_message.Message):
    __slots__ = ("engines", "queued_requests", "queued_prompt_tokens", "peak_queued_requests")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PEAK_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[EngineOccupancy]
    queued_requests: int
    queued_prompt_tokens: int
    peak_queued_requests: int
    def __init__(self, engines: _Optional[_Iterable[_Union[EngineOccupancy, _Mapping]]] = ..., queued_requests: _Optional[int] = ..., queued_prompt_tokens: _Optional[int] = ..., peak_queued_requests: _Optional[int] = ...) -> None: ...
