"""``python -m services.loader.gguf FILE.gguf DIR``: a GGUF file of the llama or qwen2 family becomes a Hugging Face directory.

Weights come out as bf16. Progress and errors are told as `services.loader.convert` tells them; there is no
artifact yet, so the last JSON line is ``{"directory": …}``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.durable import publish_directory, sync
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.checkpoint.writer import Progress
from services.common.errors import AlreadyExists
from services.loader.command import paths_parser, run_command
from services.loader.gguf_file import GgufFile
from services.loader.gguf_source import small_files_of
from services.loader.recast import recast
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
    small_files = small_files_of(file)
    destination.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{destination.name}.unpacking-"
    sweep(destination.parent, prefix)
    with owned_directory(destination.parent, prefix) as work:
        specs = [TensorSpec(name=each.name, dtype=DType.BF16, shape=each.shape) for each in file.tensors]
        write_safetensors(work / "model.safetensors", specs, _contents(file, progress))
        for name, value in small_files.items():
            (work / name).write_bytes(value)
            sync(work / name)
        publish_directory(work, destination)


def _contents(file: GgufFile, progress: Progress) -> Iterator[bytearray]:
    """Every tensor's bytes as bf16."""
    total_bytes = sum(DType.BF16.nbytes(tensor.shape) for tensor in file.tensors)
    done_bytes = 0
    for tensor in file.tensors:
        content = bytearray()
        for piece in recast(tensor, DType.BF16).pieces():
            content += piece
        yield content
        done_bytes += len(content)
        progress(done_bytes, total_bytes)


def main(argv: Sequence[str]) -> int:
    return run_command(
        paths_parser(__doc__, ("FILE.gguf", "DIR")),
        argv,
        lambda options, reporter: unpack_gguf(options.source, options.destination, reporter.progress),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
