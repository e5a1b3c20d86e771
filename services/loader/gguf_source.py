"""A GGUF file as a source of artifacts."""

from __future__ import annotations

import json
from pathlib import Path

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.errors import CorruptData
from services.loader.bounded_gguf_reader import NONSENSE
from services.loader.gguf_file import GgufFile
from services.loader.gguf_tokenizer import tokenizer_config_json, tokenizer_json
from services.loader.raw_checkpoint import RawCheckpoint
from services.loader.source_tensor import Table


def read_gguf(path: Path) -> RawCheckpoint:
    """Reads everything but the tensors' bytes.

    Raises:
        HalogenError: As `GgufFile` and `tokenizer_json` raise.
    """
    file = GgufFile(path)
    return RawCheckpoint(small_files_of(file), Table({tensor.name: tensor for tensor in file.tensors}, {}))


def small_files_of(file: GgufFile) -> dict[str, bytes]:
    """The files that Hugging Face would keep beside the weights, by name.

    Raises:
        CorruptData: The file does not say enough of its model or its tokenizer.
        Unsupported: This build reads no such model or tokenizer.
    """
    try:
        config = file.config()
        Architecture.from_config(config, DType.BF16)  # whatever the dtype
        values = {
            "config.json": config,
            "generation_config.json": file.special_ids(),
            "tokenizer.json": tokenizer_json(file.metadata),
            "tokenizer_config.json": tokenizer_config_json(file.metadata),
        }
    except NONSENSE as fault:
        raise CorruptData(f"the GGUF file describes no whole model ({fault!r}); fetch it again") from None
    return {name: json.dumps(value, ensure_ascii=False, indent=1).encode() for name, value in values.items()}
