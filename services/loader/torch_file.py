"""A PyTorch zip file (.bin, .pt, .pth) as a table of byte ranges: its records are stored, not compressed."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.errors import CorruptData, InvalidRequest, Unsupported
from services.loader.source_tensor import StoredTensor, Table, check_crc32, read_range
from services.loader.torch_pickle import STORAGES, TorchTensor, read_pickle
from services.loader.training_state import is_training_state

MAX_PICKLE_BYTES: Final = 64 << 20

_DTYPES: Final = {
    "torch BFloat16Storage": DType.BF16,
    "torch HalfStorage": DType.FP16,
    "torch FloatStorage": DType.FP32,
}
_WRAPPERS: Final = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
)  # where training scripts put the weights
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # PKWARE APPNOTE 4.3.7: signature, name and extra lengths


class _Record(NamedTuple):
    offset: int
    nbytes: int
    crc32: int


class _Records(NamedTuple):
    """The zip's records by name, the archive's own folder left off."""

    path: Path
    by_name: Mapping[str, _Record]

    @classmethod
    def read(cls, path: Path) -> Self:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            records = {info.filename: _find(file, info) for info in archive.infolist()}
            if len(records) < len(archive.infolist()):
                raise ValueError("two records of one name")
        folders = {name.partition("/")[0] for name in records}
        if len(folders) != 1:
            raise ValueError("its records are not those of one archive")
        return cls(path, {name.partition("/")[2]: record for name, record in records.items()})

    def content(self, name: str) -> bytes:
        record = self.by_name[name]
        if record.nbytes > MAX_PICKLE_BYTES:
            raise ValueError(f"{name} has {record.nbytes} bytes; the most is {MAX_PICKLE_BYTES}")
        return b"".join(bytes(piece) for piece in self._pieces(name))

    def check(self, name: str) -> None:
        """Reads a record; raises CorruptData if it is not what was saved."""
        for _ in self._pieces(name):
            pass

    def _pieces(self, name: str) -> Iterator[memoryview]:
        record, what = self.by_name[name], f"{self.path.name}: record {name}"
        return check_crc32(read_range(self.path, name, record.offset, record.nbytes), record.crc32, what)


def _find(file: IO[bytes], info: zipfile.ZipInfo) -> _Record:
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(f"{info.filename} is compressed or encrypted")
    if not 0 <= info.header_offset < file.seek(0, os.SEEK_END):
        raise ValueError(f"{info.filename} begins beyond the end")
    file.seek(info.header_offset)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise ValueError(f"{info.filename} is not where the directory says")
    offset = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if offset + info.file_size > file.seek(0, os.SEEK_END):
        raise ValueError(f"{info.filename} goes beyond the end")
    return _Record(offset, info.file_size, info.CRC)


def read_table(path: Path) -> Table:
    """The weights of a PyTorch zip file by name, and the training state beside them.

    No code of the file is run, and torch is not needed.

    Raises:
        CorruptData: The file is no whole zip file, or its pickle and its records disagree.
        InvalidRequest: It is of the legacy format, or holds no weights.
        Unsupported: It holds more than weights, or weights that cannot be converted.
    """
    _check_start(path)
    try:
        records = _Records.read(path)
        if records.by_name.keys() >= {"byteorder"} and records.content("byteorder") != b"little":
            raise Unsupported(f"{path.name}: big-endian; save it again on a little-endian machine")
        found, dropped = _split(path, read_pickle(path.name, records.content("data.pkl")))
        tensors = {name: _locate(records, name, tensor) for name, tensor in found.items()}
        for storage in {_record_of(found[name]) for name, tensor in tensors.items() if tensor.crc32 is None}:
            records.check(storage)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, KeyError, struct.error) as fault:
        raise CorruptData(f"{path.name}: not a whole PyTorch zip file ({fault}); fetch it again") from None
    return Table(dict(tensors), dropped)


def _check_start(path: Path) -> None:
    with path.open("rb") as file:
        found = recognise(file.read(RECOGNISED_BYTES))
    if found is FileFormat.TORCH_PICKLE:
        raise InvalidRequest(
            f"{path.name}: PyTorch's legacy format, which only running its code could read; on a machine where you "
            "trust it: torch.save(torch.load(FILE, weights_only=True), FILE)",
            reason="LEGACY_PICKLE",
        )
    if found is not FileFormat.TORCH_ZIP:
        raise CorruptData(f"{path.name}: not a PyTorch zip file ({found}); fetch it again")


def _split(path: Path, value: Any) -> tuple[dict[str, TorchTensor], dict[str, int]]:
    """The weights, and everything else that has bytes: its name to them."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path.name} holds no state_dict; save model.state_dict()", reason="NO_WEIGHTS")
    wrapper = next((key for key in _WRAPPERS if isinstance(value.get(key), dict)), None)
    weights: dict[Any, Any] = value if wrapper is None else value[wrapper]
    found = {
        str(name): tensor
        for name, tensor in weights.items()
        if isinstance(tensor, TorchTensor) and not is_training_state(str(name))
    }
    if not found:
        raise InvalidRequest(f"{path.name} holds no weights; save model.state_dict()", reason="NO_WEIGHTS")
    others = {} if wrapper is None else {key: item for key, item in value.items() if key != wrapper}
    others |= {name: item for name, item in weights.items() if str(name) not in found}
    return found, {str(name): _count_bytes(item) for name, item in others.items()}


def _count_bytes(value: Any) -> int:
    """Bytes of the distinct storages in a value, wherever they are."""
    storages, seen, pending = set(), set(), [value]
    while pending:
        item = pending.pop()
        if isinstance(item, TorchTensor):
            storages.add(item.storage)
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            pending += _members(item)
    return sum(STORAGES[storage.kind] * storage.elements for storage in storages)


def _members(item: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    return iter(item.values() if isinstance(item, dict) else item)


def _locate(records: _Records, name: str, tensor: TorchTensor) -> StoredTensor:
    """Where it lies; with the sum of its bytes, if it is all of its storage."""
    dtype = _DTYPES.get(tensor.storage.kind)
    if dtype is None:
        kind = tensor.storage.kind.removeprefix("torch ")
        raise Unsupported(
            f"{records.path.name}: tensor {name} is a {kind}; this build converts BFloat16, Half and Float: save "
            "it as one of these, or give the checkpoint as it was before it was quantised",
            reason="DTYPE_UNSUPPORTED",
        )
    if tensor.is_lazy:
        raise Unsupported(
            f"{records.path.name}: tensor {name} is a view that torch negates or conjugates when it reads it; save "
            "it after .resolve_neg() or .resolve_conj()",
            reason="LAZY_VIEW",
        )
    if not _is_contiguous(tensor):
        raise Unsupported(
            f"{records.path.name}: tensor {name} is not contiguous; save it after .contiguous()",
            reason="NOT_CONTIGUOUS",
        )
    record = records.by_name[_record_of(tensor)]
    begin, nbytes = tensor.offset * dtype.bits // 8, dtype.nbytes(tensor.shape)
    if begin + nbytes > record.nbytes:
        raise ValueError(f"tensor {name} goes beyond its storage")
    return StoredTensor(
        path=records.path,
        name=name,
        dtype=dtype,
        shape=tensor.shape,
        offset=record.offset + begin,
        nbytes=nbytes,
        crc32=record.crc32 if nbytes == record.nbytes else None,
    )


def _record_of(tensor: TorchTensor) -> str:
    return f"data/{tensor.storage.key}"


def _is_contiguous(tensor: TorchTensor) -> bool:
    """Row-major without gaps; the stride of an axis of one element says nothing."""
    return all(
        size == 1 or stride == math.prod(tensor.shape[axis + 1 :])
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
    )
