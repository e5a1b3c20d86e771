"""A checkpoint of zeros, as large as a test needs it, that takes no room on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from tests.tiny_checkpoints import TinyShape, write_tiny_checkpoint

GIGABYTE: Final = TinyShape(  # of float32
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=5,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=64,
    dtype=DType.FP32,
)


def write_sparse_checkpoint(directory: Path, shape: TinyShape) -> int:
    """Writes float32 zeros of the shape, with tokenizer; returns the bytes of its largest tensor."""
    write_tiny_checkpoint(directory)
    (directory / "config.json").write_text(json.dumps(shape.config()))
    header, end = {}, 0
    specs = decoder_tensors(Architecture.from_config(shape.config(), shape.dtype))
    for spec in specs:
        offsets = [end, end + spec.nbytes]
        header[spec.name] = {"dtype": "F32", "shape": list(spec.shape), "data_offsets": offsets}
        end += spec.nbytes
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return max(spec.nbytes for spec in specs)
