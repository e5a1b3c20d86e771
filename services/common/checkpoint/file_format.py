"""Which kind of weight file the first bytes belong to, so that a wrong one is named and not guessed at."""

from __future__ import annotations

import enum
from typing import Final

MAGIC: Final = b"\x89HALOGEN"
WEIGHTS_NAME: Final = "model.halogen"  # a weight file's name in its artifact
RECOGNISED_BYTES: Final = 9  # enough of a file's start for `recognise`


class FileFormat(enum.StrEnum):
    V2 = "halogen v2"
    SAFETENSORS = "safetensors"
    TORCH_ZIP = "PyTorch zip"
    TORCH_PICKLE = "PyTorch legacy pickle"
    GGUF = "GGUF"
    UNKNOWN = "unknown"


_MAGICS: Final = {
    MAGIC: FileFormat.V2,
    b"GGUF": FileFormat.GGUF,
    b"PK\x03\x04": FileFormat.TORCH_ZIP,
    b"\x80\x02": FileFormat.TORCH_PICKLE,
}


def recognise(start: bytes) -> FileFormat:
    """The format of a file that begins with `start` (at least RECOGNISED_BYTES, or all it has)."""
    for magic, file_format in _MAGICS.items():
        if start.startswith(magic):
            return file_format
    if len(start) >= RECOGNISED_BYTES and start[8:9] == b"{" and start[5:8] == b"\x00\x00\x00":
        return FileFormat.SAFETENSORS  # a little-endian 64-bit length below 2^40, then JSON
    return FileFormat.UNKNOWN
