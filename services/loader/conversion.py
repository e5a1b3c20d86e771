"""Converts a checkpoint into an artifact: streamed, digested on the way, there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions, Validation
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.durable import sync
from services.common.checkpoint.header import Header
from services.common.checkpoint.manifest import MANIFEST_NAME, PATHS, Manifest, ManifestFile, Role
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.writer import Progress, write_weights
from services.loader import copies
from services.loader.checkpoint import Checkpoint
from services.loader.destination import Destination
from services.loader.source_stamp import check_unchanged, stamp
from services.loader.validation import validate

_FP16: Final = (
    "stored in fp16: engines serve it from copies in fp32, which take twice the memory and more time; with "
    "--quant-policy bf16 they use it where it lies"
)

Note = Callable[[str], None]

_ROLES: Final = {path: role for role, path in PATHS.items()}


def convert(
    source: Path,
    destination: Path,
    progress: Progress = lambda _done, _total: None,
    *,
    options: ConversionOptions = DEFAULTS,
    note: Note = lambda _line: None,
) -> Manifest:
    """Writes the artifact of the checkpoint at `source` to `destination`, and returns its manifest.

    Whatever the model's size, it needs memory for a few pieces of 4 MiB and the small files.

    Args:
        source: A Hugging Face directory with safetensors or PyTorch zip files, a GGUF file, or an artifact.
        destination: Absent, empty, or holding the very same artifact.
        progress: Told of the weights' bytes, done and in total; of those compared once more in the end.
        options: What to store, and how much to compare with the source.
        note: Told in a line each what was dropped, dequantised, found twice and validated.

    Raises:
        AlreadyExists: The destination holds something else.
        CorruptData: The source is damaged or changed meanwhile, or the result is not what the source says.
        HalogenError: As `Checkpoint.open` raises.
        Overloaded: The disk has no room for it.
        OSError: The disk says no.
    """
    place, before = Destination.check(destination), stamp(source)
    checkpoint = Checkpoint.open(source, options)
    with place.workshop(checkpoint.stored_bytes) as work:
        manifest = _make(checkpoint, work, options.validation, progress, note)
        check_unchanged(source, before)
        place.take(work, manifest)
    return manifest


def _make(checkpoint: Checkpoint, work: Path, extent: Validation, progress: Progress, note: Note) -> Manifest:
    """Fills the directory `work`; its manifest goes in last."""
    for line in checkpoint.notes:
        note(line)
    header = _write_weights(checkpoint, work, progress)
    if DType.FP16 in header.precisions:
        note(_FP16)
    for line in _findings(checkpoint, work, header, extent, progress):
        note(line)
    return _write_rest(checkpoint, work, header)


def _write_weights(checkpoint: Checkpoint, work: Path, progress: Progress) -> Header:
    return write_weights(
        work / PATHS[Role.WEIGHTS],
        checkpoint.specs,
        checkpoint.architecture,
        lambda entry: checkpoint.tensors[entry.name].pieces(),
        progress,
        storage=checkpoint.storage,
    )


def _findings(
    checkpoint: Checkpoint, work: Path, header: Header, extent: Validation, progress: Progress
) -> Iterator[str]:
    """Looks at what was written: what is there twice, and whether it is the source."""
    weights = work / PATHS[Role.WEIGHTS]
    yield from copies.describe(copies.find_copies(weights, header))
    worst = validate(checkpoint.sources, weights, header, extent, progress)
    if worst is not None:
        yield f"validated ({extent}): the worst tensor is {worst}"


def _write_rest(checkpoint: Checkpoint, work: Path, header: Header) -> Manifest:
    """The small files, and the manifest that names all of them."""
    files = [_weights_file(header)]
    for name, content in checkpoint.small_files.items():
        _write_small(work / name, content)
        files.append(
            ManifestFile(path=name, size_bytes=len(content), sha256=sha256_hex(content), role=_ROLES[name])
        )
    in_order = tuple(sorted(files, key=lambda file: file.path))
    manifest = Manifest(checkpoint.architecture, in_order, Requirements.of(header, checkpoint.hosts))
    _write_small(work / MANIFEST_NAME, manifest.encode())
    return manifest


def _weights_file(header: Header) -> ManifestFile:
    return ManifestFile(
        path=PATHS[Role.WEIGHTS], size_bytes=header.file_bytes, sha256=header.identity, role=Role.WEIGHTS
    )


def _write_small(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)
