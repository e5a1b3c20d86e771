"""A safetensors file as a table of byte ranges: a length, JSON, then the tensors (huggingface/safetensors, README)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.errors import CorruptData, Unsupported

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own bound
PIECE_BYTES: Final = 4 << 20

_DTYPES: Final = {"BF16": DType.BF16, "F16": DType.FP16, "F32": DType.FP32}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceTensor:
    """A tensor as it lies in a safetensors file: `nbytes` at `offset`, row-major, little-endian."""

    path: Path
    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def pieces(self) -> Iterator[memoryview]:
        """The tensor's bytes, up to 4 MiB at a time; a piece is valid until the next is asked for.

        Raises:
            CorruptData: The file has become shorter than its header says.
        """
        buffer = memoryview(bytearray(min(PIECE_BYTES, self.nbytes)))
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            done_bytes = 0
            while done_bytes < self.nbytes:
                wanted = buffer[: self.nbytes - done_bytes]
                count = os.preadv(descriptor, [wanted], self.offset + done_bytes)
                if count == 0:
                    raise CorruptData(f"{self.path.name}: ends inside tensor {self.name}")
                done_bytes += count
                yield wanted[:count]
        finally:
            os.close(descriptor)


def read_table(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a safetensors file by name.

    Raises:
        CorruptData: The file is no safetensors file, truncated, or its table is inconsistent.
        Unsupported: A tensor's dtype cannot be converted.
    """
    try:
        header, data_offset, data_bytes = _read_header(path)
        header.pop("__metadata__", None)
        tensors = [_decode_tensor(path, name, entry, data_offset) for name, entry in header.items()]
        _check_extents(tensors, data_offset, data_bytes)
    except (ValueError, TypeError, KeyError) as fault:
        raise CorruptData(f"{path.name}: not a whole safetensors file ({fault}); fetch it again") from None
    return {tensor.name: tensor for tensor in tensors}


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
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError("the header is not an object")
    return header, 8 + length, size_bytes - 8 - length


def _decode_tensor(path: Path, name: str, entry: dict[str, Any], data_offset: int) -> SourceTensor:
    if entry["dtype"] not in _DTYPES:
        raise Unsupported(
            f"{path.name}: tensor {name} is {entry['dtype']}; this build converts {', '.join(_DTYPES)}",
            reason="DTYPE_UNSUPPORTED",
        )
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"tensor {name} has a shape or offsets that are not counts")
    dtype = _DTYPES[entry["dtype"]]
    if end - begin != dtype.nbytes(shape):
        raise ValueError(f"tensor {name} has {end - begin} bytes, not those of its shape and dtype")
    return SourceTensor(
        path=path, name=name, dtype=dtype, shape=shape, offset=data_offset + begin, nbytes=end - begin
    )


def _check_extents(tensors: list[SourceTensor], data_offset: int, data_bytes: int) -> None:
    end = data_offset
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            raise ValueError(f"tensor {tensor.name} overlaps another, or leaves a gap")
        end += tensor.nbytes
    if end != data_offset + data_bytes:
        raise ValueError(f"the tensors end at byte {end}, the file at {data_offset + data_bytes}")
