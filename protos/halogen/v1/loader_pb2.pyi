from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "rank", "verify_only", "layout")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    VERIFY_ONLY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    rank: TensorParallelRank
    verify_only: bool
    layout: WeightLayout
    def __init__(self, artifact_id: _Optional[str] = ..., rank: _Optional[_Union[TensorParallelRank, _Mapping]] = ..., verify_only: _Optional[bool] = ..., layout: _Optional[_Union[WeightLayout, _Mapping]] = ...) -> None: ...

class WeightLayout(_message.Message):
    __slots__ = ("abi", "isa")
    ABI_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    abi: str
    isa: str
    def __init__(self, abi: _Optional[str] = ..., isa: _Optional[str] = ...) -> None: ...

class TensorParallelRank(_message.Message):
    __slots__ = ("size", "index", "indices_here")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDICES_HERE_FIELD_NUMBER: _ClassVar[int]
    size: int
    index: int
    indices_here: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, size: _Optional[int] = ..., index: _Optional[int] = ..., indices_here: _Optional[_Iterable[int]] = ...) -> None: ...

class PrepareArtifactResponse(_message.Message):
    __slots__ = ("progress", "prepared")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    progress: PrepareProgress
    prepared: PreparedArtifact
    def __init__(self, progress: _Optional[_Union[PrepareProgress, _Mapping]] = ..., prepared: _Optional[_Union[PreparedArtifact, _Mapping]] = ...) -> None: ...

class PrepareProgress(_message.Message):
    __slots__ = ("done_bytes", "total_bytes")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class PreparedArtifact(_message.Message):
    __slots__ = ("artifact_id", "files")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    files: _containers.RepeatedCompositeFieldContainer[PreparedFile]
    def __init__(self, artifact_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[PreparedFile, _Mapping]]] = ...) -> None: ...

class PreparedFile(_message.Message):
    __slots__ = ("path", "mapped_path", "size_bytes", "identity", "place", "huge_pages", "lazy_bytes", "layout")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAPPED_PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_FIELD_NUMBER: _ClassVar[int]
    LAZY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    path: str
    mapped_path: str
    size_bytes: int
    identity: str
    place: str
    huge_pages: bool
    lazy_bytes: int
    layout: WeightLayout
    def __init__(self, path: _Optional[str] = ..., mapped_path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., identity: _Optional[str] = ..., place: _Optional[str] = ..., huge_pages: _Optional[bool] = ..., lazy_bytes: _Optional[int] = ..., layout: _Optional[_Union[WeightLayout, _Mapping]] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("artifact_id", "path")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    path: str
    def __init__(self, artifact_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ConvertCheckpointRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: str
    def __init__(self, source: _Optional[str] = ...) -> None: ...

class ConvertCheckpointResponse(_message.Message):
    __slots__ = ("done_bytes", "total_bytes", "artifact_id")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    artifact_id: str
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., artifact_id: _Optional[str] = ...) -> None: ...
