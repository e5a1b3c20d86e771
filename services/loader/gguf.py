"""``python -m services.loader.gguf FILE.gguf DIR``: a llama-family GGUF file becomes a Hugging Face directory.

Weights come out as bf16. Progress and errors are told as `services.loader.convert` tells them; there is no
artifact yet, so the last JSON line is ``{"directory": …}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.common.checkpoint.durable import publish_directory, sync
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.checkpoint.writer import Progress
from services.common.errors import AlreadyExists
from services.loader.command import run_command
from services.loader.gguf_file import GgufFile
from services.loader.gguf_tokenizer import tokenizer_config_json, tokenizer_json
from services.loader.safetensors_writer import write_safetensors


def unpack_gguf(source: Path, destination: Path, progress: Progress = lambda _done, _total: None) -> None:
    """Writes the checkpoint in the GGUF file `source` to the directory `destination`, whole or not at all.

    Args:
        source: The file.
        destination: Absent or empty.
        progress: Told of the bf16 bytes.

    Raises:
        AlreadyExists: The destination is taken.
        HalogenError: As `GgufFile` raises.
    """
    destination = destination.absolute()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise AlreadyExists(f"{destination.name} exists; give another DIR", reason="DESTINATION_EXISTS")
    file = GgufFile(source)
    small_files = _small_files(file)
    destination.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{destination.name}.unpacking-"
    sweep(destination.parent, prefix)
    with owned_directory(destination.parent, prefix) as work:
        specs = [tensor.spec for tensor in file.tensors]
        write_safetensors(work / "model.safetensors", specs, _counted(file, progress))
        for name, value in small_files.items():
            (work / name).write_text(json.dumps(value, ensure_ascii=False, indent=1))
            sync(work / name)
        publish_directory(work, destination)


def _small_files(file: GgufFile) -> dict[str, Any]:
    return {
        "config.json": file.config(),
        "generation_config.json": file.special_ids(),
        "tokenizer.json": tokenizer_json(file.metadata),
        "tokenizer_config.json": tokenizer_config_json(file.metadata),
    }


def _counted(file: GgufFile, progress: Progress) -> Iterator[memoryview]:
    total_bytes, done_bytes = sum(tensor.spec.nbytes for tensor in file.tensors), 0
    for content in file.contents():
        yield content
        done_bytes += len(content)
        progress(done_bytes, total_bytes)


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:], __doc__, ("FILE.gguf", "DIR"), unpack_gguf))
