import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from halogen.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArtifactState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_STATE_UNSPECIFIED: _ClassVar[ArtifactState]
    ARTIFACT_STATE_PENDING: _ClassVar[ArtifactState]
    ARTIFACT_STATE_READY: _ClassVar[ArtifactState]
    ARTIFACT_STATE_REJECTED: _ClassVar[ArtifactState]

class SwapMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SWAP_MODE_UNSPECIFIED: _ClassVar[SwapMode]
    SWAP_MODE_ATOMIC_SWAP: _ClassVar[SwapMode]
    SWAP_MODE_DRAIN_THEN_LOAD: _ClassVar[SwapMode]

class PublishState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUBLISH_STATE_UNSPECIFIED: _ClassVar[PublishState]
    PUBLISH_STATE_PENDING: _ClassVar[PublishState]
    PUBLISH_STATE_APPLIED: _ClassVar[PublishState]
    PUBLISH_STATE_SUPERSEDED: _ClassVar[PublishState]
    PUBLISH_STATE_FAILED: _ClassVar[PublishState]

class RegistrySyncStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGISTRY_SYNC_STATUS_UNSPECIFIED: _ClassVar[RegistrySyncStatus]
    REGISTRY_SYNC_STATUS_PENDING: _ClassVar[RegistrySyncStatus]
    REGISTRY_SYNC_STATUS_SYNCED: _ClassVar[RegistrySyncStatus]
    REGISTRY_SYNC_STATUS_FAILED: _ClassVar[RegistrySyncStatus]
ARTIFACT_STATE_UNSPECIFIED: ArtifactState
ARTIFACT_STATE_PENDING: ArtifactState
ARTIFACT_STATE_READY: ArtifactState
ARTIFACT_STATE_REJECTED: ArtifactState
SWAP_MODE_UNSPECIFIED: SwapMode
SWAP_MODE_ATOMIC_SWAP: SwapMode
SWAP_MODE_DRAIN_THEN_LOAD: SwapMode
PUBLISH_STATE_UNSPECIFIED: PublishState
PUBLISH_STATE_PENDING: PublishState
PUBLISH_STATE_APPLIED: PublishState
PUBLISH_STATE_SUPERSEDED: PublishState
PUBLISH_STATE_FAILED: PublishState
REGISTRY_SYNC_STATUS_UNSPECIFIED: RegistrySyncStatus
REGISTRY_SYNC_STATUS_PENDING: RegistrySyncStatus
REGISTRY_SYNC_STATUS_SYNCED: RegistrySyncStatus
REGISTRY_SYNC_STATUS_FAILED: RegistrySyncStatus

class CheckArtifactRequest(_message.Message):
    __slots__ = ("model", "manifest")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    model: str
    manifest: bytes
    def __init__(self, model: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class CheckArtifactResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterArtifactRequest(_message.Message):
    __slots__ = ("model", "manifest", "reverify", "signatures", "who", "why", "artifact_id", "verify_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    REVERIFY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFY_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    manifest: bytes
    reverify: bool
    signatures: bytes
    who: str
    why: str
    artifact_id: str
    verify_only: bool
    def __init__(self, model: _Optional[str] = ..., manifest: _Optional[bytes] = ..., reverify: _Optional[bool] = ..., signatures: _Optional[bytes] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., artifact_id: _Optional[str] = ..., verify_only: _Optional[bool] = ...) -> None: ...

class RegisterArtifactResponse(_message.Message):
    __slots__ = ("artifact_id", "state", "reason", "done_bytes", "total_bytes")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    state: ArtifactState
    reason: str
    done_bytes: int
    total_bytes: int
    def __init__(self, artifact_id: _Optional[str] = ..., state: _Optional[_Union[ArtifactState, str]] = ..., reason: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class PublishModelRequest(_message.Message):
    __slots__ = ("model", "cohort", "artifact_id", "expected_revision", "who", "why", "strategy")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    artifact_id: str
    expected_revision: int
    who: str
    why: str
    strategy: Strategy
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., artifact_id: _Optional[str] = ..., expected_revision: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., strategy: _Optional[_Union[Strategy, _Mapping]] = ...) -> None: ...

class Strategy(_message.Message):
    __slots__ = ("mode", "timeout_ms", "fallback_on_failure", "min_ready", "memory_guard_ratio")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    MIN_READY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GUARD_RATIO_FIELD_NUMBER: _ClassVar[int]
    mode: SwapMode
    timeout_ms: int
    fallback_on_failure: bool
    min_ready: int
    memory_guard_ratio: float
    def __init__(self, mode: _Optional[_Union[SwapMode, str]] = ..., timeout_ms: _Optional[int] = ..., fallback_on_failure: _Optional[bool] = ..., min_ready: _Optional[int] = ..., memory_guard_ratio: _Optional[float] = ...) -> None: ...

class PublishModelResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class UnpublishModelRequest(_message.Message):
    __slots__ = ("model", "cohort", "expected_revision", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    expected_revision: int
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., expected_revision: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class UnpublishModelResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class RollbackModelRequest(_message.Message):
    __slots__ = ("model", "cohort", "to_revision", "expected_revision", "who", "why", "strategy")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    TO_REVISION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    to_revision: int
    expected_revision: int
    who: str
    why: str
    strategy: Strategy
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., to_revision: _Optional[int] = ..., expected_revision: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., strategy: _Optional[_Union[Strategy, _Mapping]] = ...) -> None: ...

class RollbackModelResponse(_message.Message):
    __slots__ = ("revision", "artifact_id")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    revision: int
    artifact_id: str
    def __init__(self, revision: _Optional[int] = ..., artifact_id: _Optional[str] = ...) -> None: ...

class AbortPublishRequest(_message.Message):
    __slots__ = ("model", "cohort", "expected_revision", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    expected_revision: int
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., expected_revision: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class AbortPublishResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("stage", "reason", "message")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    stage: _types_pb2.Stage
    reason: str
    message: str
    def __init__(self, stage: _Optional[_Union[_types_pb2.Stage, str]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PublishOutcome(_message.Message):
    __slots__ = ("revision", "state", "failure", "superseded_by", "waiting_for")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    revision: int
    state: PublishState
    failure: Failure
    superseded_by: int
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, revision: _Optional[int] = ..., state: _Optional[_Union[PublishState, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., superseded_by: _Optional[int] = ..., waiting_for: _Optional[_Iterable[str]] = ...) -> None: ...

class ListHistoryRequest(_message.Message):
    __slots__ = ("model", "cohort", "max_entries")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    max_entries: int
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., max_entries: _Optional[int] = ...) -> None: ...

class ListHistoryResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class HistoryEntry(_message.Message):
    __slots__ = ("revision", "cohort", "artifact_id", "old_artifact_id", "who", "why", "time", "outcome", "end_time", "registry_sync_status")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    OLD_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_SYNC_STATUS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    cohort: str
    artifact_id: str
    old_artifact_id: str
    who: str
    why: str
    time: _timestamp_pb2.Timestamp
    outcome: PublishOutcome
    end_time: _timestamp_pb2.Timestamp
    registry_sync_status: RegistrySyncStatus
    def __init__(self, revision: _Optional[int] = ..., cohort: _Optional[str] = ..., artifact_id: _Optional[str] = ..., old_artifact_id: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[_Union[PublishOutcome, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., registry_sync_status: _Optional[_Union[RegistrySyncStatus, str]] = ...) -> None: ...

class WatchPublishRequest(_message.Message):
    __slots__ = ("model", "revision")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: int
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchPublishResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: PublishOutcome
    def __init__(self, outcome: _Optional[_Union[PublishOutcome, _Mapping]] = ...) -> None: ...

class PushCommitRequest(_message.Message):
    __slots__ = ("model", "revision", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: int
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class PushCommitResponse(_message.Message):
    __slots__ = ("revision", "registry_sync_status", "failure")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_SYNC_STATUS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    registry_sync_status: RegistrySyncStatus
    failure: Failure
    def __init__(self, revision: _Optional[int] = ..., registry_sync_status: _Optional[_Union[RegistrySyncStatus, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class QualifyArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "build", "approved", "accuracy", "git_commit", "data_set", "who", "why")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GIT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    build: str
    approved: bool
    accuracy: float
    git_commit: str
    data_set: str
    who: str
    why: str
    def __init__(self, artifact_id: _Optional[str] = ..., build: _Optional[str] = ..., approved: _Optional[bool] = ..., accuracy: _Optional[float] = ..., git_commit: _Optional[str] = ..., data_set: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class QualifyArtifactResponse(_message.Message):
    __slots__ = ("qualification",)
    QUALIFICATION_FIELD_NUMBER: _ClassVar[int]
    qualification: Qualification
    def __init__(self, qualification: _Optional[_Union[Qualification, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class CohortStatus(_message.Message):
    __slots__ = ("model", "cohort", "desired_revision", "desired_artifact_id", "serving_revision", "serving_artifact_id", "who", "why", "desired_state", "waiting_for", "last_error", "applied_sequence_id", "expected_next_id", "last_swap_duration_ms", "last_swap_age_ms", "registry_sync_status", "registry_failure")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    DESIRED_REVISION_FIELD_NUMBER: _ClassVar[int]
    DESIRED_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    SERVING_REVISION_FIELD_NUMBER: _ClassVar[int]
    SERVING_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DESIRED_STATE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SWAP_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SWAP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_SYNC_STATUS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FAILURE_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    desired_revision: int
    desired_artifact_id: str
    serving_revision: int
    serving_artifact_id: str
    who: str
    why: str
    desired_state: PublishState
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    last_error: Failure
    applied_sequence_id: int
    expected_next_id: int
    last_swap_duration_ms: int
    last_swap_age_ms: int
    registry_sync_status: RegistrySyncStatus
    registry_failure: Failure
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., desired_revision: _Optional[int] = ..., desired_artifact_id: _Optional[str] = ..., serving_revision: _Optional[int] = ..., serving_artifact_id: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., desired_state: _Optional[_Union[PublishState, str]] = ..., waiting_for: _Optional[_Iterable[str]] = ..., last_error: _Optional[_Union[Failure, _Mapping]] = ..., applied_sequence_id: _Optional[int] = ..., expected_next_id: _Optional[int] = ..., last_swap_duration_ms: _Optional[int] = ..., last_swap_age_ms: _Optional[int] = ..., registry_sync_status: _Optional[_Union[RegistrySyncStatus, str]] = ..., registry_failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CohortProgress(_message.Message):
    __slots__ = ("model", "cohort", "desired_revision", "actual_revision", "state", "state_version", "applied_sequence_id", "expected_next_id", "last_swap_duration_ms", "last_swap_age_ms", "last_error")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    DESIRED_REVISION_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SWAP_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SWAP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    desired_revision: int
    actual_revision: int
    state: _types_pb2.GenerationState
    state_version: int
    applied_sequence_id: int
    expected_next_id: int
    last_swap_duration_ms: int
    last_swap_age_ms: int
    last_error: Failure
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., desired_revision: _Optional[int] = ..., actual_revision: _Optional[int] = ..., state: _Optional[_Union[_types_pb2.GenerationState, str]] = ..., state_version: _Optional[int] = ..., applied_sequence_id: _Optional[int] = ..., expected_next_id: _Optional[int] = ..., last_swap_duration_ms: _Optional[int] = ..., last_swap_age_ms: _Optional[int] = ..., last_error: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class GenerationStatus(_message.Message):
    __slots__ = ("model", "cohort", "revision", "artifact_id", "state", "error", "failure", "layout")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    cohort: str
    revision: int
    artifact_id: str
    state: _types_pb2.GenerationState
    error: str
    failure: Failure
    layout: str
    def __init__(self, model: _Optional[str] = ..., cohort: _Optional[str] = ..., revision: _Optional[int] = ..., artifact_id: _Optional[str] = ..., state: _Optional[_Union[_types_pb2.GenerationState, str]] = ..., error: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., layout: _Optional[str] = ...) -> None: ...

class ProcessStatus(_message.Message):
    __slots__ = ("role", "id", "instance_id", "address", "host", "start_time", "generations", "artifact_ids", "placement", "term", "http_address", "text_failures", "runtime_build", "reading", "progress", "weights")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_IDS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_BUILD_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: str
    instance_id: str
    address: str
    host: str
    start_time: _timestamp_pb2.Timestamp
    generations: _containers.RepeatedCompositeFieldContainer[GenerationStatus]
    artifact_ids: _containers.RepeatedScalarFieldContainer[str]
    placement: str
    term: int
    http_address: str
    text_failures: _containers.RepeatedCompositeFieldContainer[TextFailure]
    runtime_build: str
    reading: str
    progress: _containers.RepeatedCompositeFieldContainer[CohortProgress]
    weights: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, role: _Optional[str] = ..., id: _Optional[str] = ..., instance_id: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., generations: _Optional[_Iterable[_Union[GenerationStatus, _Mapping]]] = ..., artifact_ids: _Optional[_Iterable[str]] = ..., placement: _Optional[str] = ..., term: _Optional[int] = ..., http_address: _Optional[str] = ..., text_failures: _Optional[_Iterable[_Union[TextFailure, _Mapping]]] = ..., runtime_build: _Optional[str] = ..., reading: _Optional[str] = ..., progress: _Optional[_Iterable[_Union[CohortProgress, _Mapping]]] = ..., weights: _Optional[_Iterable[str]] = ...) -> None: ...

class TextFailure(_message.Message):
    __slots__ = ("artifact_id", "error", "model", "cohort", "revision")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    error: str
    model: str
    cohort: str
    revision: int
    def __init__(self, artifact_id: _Optional[str] = ..., error: _Optional[str] = ..., model: _Optional[str] = ..., cohort: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ArtifactStatus(_message.Message):
    __slots__ = ("model", "artifact_id", "state", "reason")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    model: str
    artifact_id: str
    state: ArtifactState
    reason: str
    def __init__(self, model: _Optional[str] = ..., artifact_id: _Optional[str] = ..., state: _Optional[_Union[ArtifactState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ProbeResult(_message.Message):
    __slots__ = ("name", "passed", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    passed: bool
    detail: str
    def __init__(self, name: _Optional[str] = ..., passed: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("time", "who", "why", "approved", "accuracy", "git_commit", "data_set")
    TIME_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GIT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    who: str
    why: str
    approved: bool
    accuracy: float
    git_commit: str
    data_set: str
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., approved: _Optional[bool] = ..., accuracy: _Optional[float] = ..., git_commit: _Optional[str] = ..., data_set: _Optional[str] = ...) -> None: ...

class Qualification(_message.Message):
    __slots__ = ("artifact_id", "build", "runtime_build", "graph_root", "kernels", "device", "probes", "statements", "approved", "accuracy", "git_commit", "data_set")
    class KernelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DeviceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_BUILD_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ROOT_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GIT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    build: str
    runtime_build: str
    graph_root: str
    kernels: _containers.ScalarMap[str, str]
    device: _containers.ScalarMap[str, str]
    probes: _containers.RepeatedCompositeFieldContainer[ProbeResult]
    statements: _containers.RepeatedCompositeFieldContainer[Statement]
    approved: bool
    accuracy: float
    git_commit: str
    data_set: str
    def __init__(self, artifact_id: _Optional[str] = ..., build: _Optional[str] = ..., runtime_build: _Optional[str] = ..., graph_root: _Optional[str] = ..., kernels: _Optional[_Mapping[str, str]] = ..., device: _Optional[_Mapping[str, str]] = ..., probes: _Optional[_Iterable[_Union[ProbeResult, _Mapping]]] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ..., approved: _Optional[bool] = ..., accuracy: _Optional[float] = ..., git_commit: _Optional[str] = ..., data_set: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("cohorts", "processes", "artifacts", "answered_by", "qualifications", "is_stale")
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    QUALIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    IS_STALE_FIELD_NUMBER: _ClassVar[int]
    cohorts: _containers.RepeatedCompositeFieldContainer[CohortStatus]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStatus]
    artifacts: _containers.RepeatedCompositeFieldContainer[ArtifactStatus]
    answered_by: str
    qualifications: _containers.RepeatedCompositeFieldContainer[Qualification]
    is_stale: bool
    def __init__(self, cohorts: _Optional[_Iterable[_Union[CohortStatus, _Mapping]]] = ..., processes: _Optional[_Iterable[_Union[ProcessStatus, _Mapping]]] = ..., artifacts: _Optional[_Iterable[_Union[ArtifactStatus, _Mapping]]] = ..., answered_by: _Optional[str] = ..., qualifications: _Optional[_Iterable[_Union[Qualification, _Mapping]]] = ..., is_stale: _Optional[bool] = ...) -> None: ...
