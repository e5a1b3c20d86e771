"""Writes a safetensors file tensor by tensor, so that never more than one need be in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from services.common.checkpoint.digest import Buffer
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import TensorSpec, align

_NAMES: Final = {DType.BF16: "BF16", DType.FP16: "F16", DType.FP32: "F32"}
_HEADER_ALIGNMENT: Final = 8


def write_safetensors(path: Path, specs: Iterable[TensorSpec], contents: Iterable[Buffer]) -> None:
    """Writes the tensors back to back in the order given, with the metadata that transformers asks for.

    Args:
        path: A file that does not exist yet; synced when this returns.
        specs: Name, dtype and shape of every tensor.
        contents: Their bytes, in the same order.

    Raises:
        ValueError: A tensor's bytes are not as long as its shape says, or are too many or few in number.
    """
    specs = tuple(specs)
    text = json.dumps(_header(specs)).encode()
    text = text.ljust(align(len(text), _HEADER_ALIGNMENT))
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec, content in zip(specs, contents, strict=True):
            if file.write(content) != spec.nbytes:
                raise ValueError(f"tensor {spec.name} came with other than its {spec.nbytes} bytes")
        file.flush()
        os.fsync(file.fileno())


def _header(specs: tuple[TensorSpec, ...]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        begin, end = end, end + spec.nbytes
        header[spec.name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    return header
