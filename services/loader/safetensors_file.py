"""A safetensors file as a table of byte ranges: a length, JSON, then the tensors (huggingface/safetensors, README)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.errors import CorruptData, Unsupported
from services.loader.json_object import decode
from services.loader.source_tensor import SourceTensor, StoredTensor, Table
from services.loader.training_state import is_training_state

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own bound

_DTYPES: Final = {"BF16": DType.BF16, "F16": DType.FP16, "F32": DType.FP32}


class _Entry(NamedTuple):
    """A tensor of the header; `begin` and `end` count from the start of the data."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    begin: int
    end: int


def read_table(path: Path) -> Table:
    """The tensors of a safetensors file by name.

    Raises:
        CorruptData: The file is no safetensors file, truncated, or its table is inconsistent.
        Unsupported: A tensor's dtype cannot be converted.
    """
    try:
        header, data_offset, data_bytes = _read_header(path)
        header.pop("__metadata__", None)
        entries = [_decode_entry(name, entry) for name, entry in header.items()]
        _check_extents(entries, data_bytes)
        dropped = {entry.name: entry.end - entry.begin for entry in entries if is_training_state(entry.name)}
        tensors: dict[str, SourceTensor] = {
            entry.name: _locate(path, entry, data_offset) for entry in entries if entry.name not in dropped
        }
    except (ValueError, TypeError, KeyError, RecursionError) as fault:
        raise CorruptData(f"{path.name}: not a whole safetensors file ({fault}); fetch it again") from None
    return Table(tensors, dropped)


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    with path.open("rb") as file:
        start = file.read(RECOGNISED_BYTES)
        if (found := recognise(start)) is not FileFormat.SAFETENSORS:
            raise ValueError(f"its first bytes are those of: {found}")
        length = int.from_bytes(start[:8], "little")
        size_bytes = os.fstat(file.fileno()).st_size
        if length > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise ValueError(f"a header of {length} bytes in a file of {size_bytes}")
        file.seek(8)
        header = decode(file.read(length))
    if not isinstance(header, dict):
        raise TypeError("the header is not an object")
    return header, 8 + length, size_bytes - 8 - length


def _decode_entry(name: str, entry: dict[str, Any]) -> _Entry:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"tensor {name} has a shape or offsets that are not counts")
    return _Entry(name, entry["dtype"], shape, begin, end)


def _locate(path: Path, entry: _Entry, data_offset: int) -> StoredTensor:
    dtype = _DTYPES.get(str(entry.dtype))
    if dtype is None:
        raise Unsupported(
            f"{path.name}: tensor {entry.name} is {entry.dtype}; this build converts {', '.join(_DTYPES)}: save it "
            "in one of these, or give the checkpoint as it was before it was quantised",
            reason="DTYPE_UNSUPPORTED",
        )
    nbytes = entry.end - entry.begin
    if nbytes != dtype.nbytes(entry.shape):
        raise ValueError(f"tensor {entry.name} has {nbytes} bytes, not those of its shape and dtype")
    return StoredTensor(
        path=path,
        name=entry.name,
        dtype=dtype,
        shape=entry.shape,
        offset=data_offset + entry.begin,
        nbytes=nbytes,
    )


def _check_extents(entries: list[_Entry], data_bytes: int) -> None:
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end or entry.end < entry.begin:
            raise ValueError(f"tensor {entry.name} overlaps another, or leaves a gap")
        end = entry.end
    if end != data_bytes:
        raise ValueError(f"the tensors end at byte {end} of the data's {data_bytes}")
