"""Whether an artifact is what a source would become: its files, its tensors, every value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.header import Header
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.verified_artifact import read_header, verify_small_files, verify_weights
from services.common.checkpoint.writer import Progress
from services.common.errors import CorruptData
from services.loader.checkpoint import Checkpoint
from services.loader.validation import validate


def verify(
    source: Path,
    artifact: Path,
    progress: Progress = lambda _done, _total: None,
    note: Callable[[str], None] = lambda _line: None,
) -> Manifest:
    """Compares an artifact with the source that it is said to come from.

    Args:
        source: Whatever `convert` takes.
        artifact: An artifact directory.
        progress: Told of the compared bytes.
        note: Told what was compared, and the worst tensor.

    Returns:
        The artifact's manifest.

    Raises:
        CorruptData: The artifact is damaged, or differs; the message names the file, field or tensor.
        HalogenError: As `Checkpoint.open` raises.
    """
    stored = StoredArtifact(artifact, read_manifest(artifact))
    verify_small_files(stored)
    verify_weights(stored)
    header = read_header(stored)
    policy = QuantPolicy(stored.manifest.architecture.dtype.value)
    checkpoint = Checkpoint.open(source, ConversionOptions(quant_policy=policy, storage=header.storage))
    _check_files(checkpoint, stored)
    _check_tensors(checkpoint, stored.manifest, header)
    weights = stored.path(stored.manifest.weights)
    worst = validate(checkpoint.sources, weights, header, Validation.FULL, progress)
    note(f"{len(header.tensors)} tensors and {len(checkpoint.small_files)} files equal; the worst is {worst}")
    return stored.manifest


def _check_files(checkpoint: Checkpoint, stored: StoredArtifact) -> None:
    kept = {file.path: stored.path(file).read_bytes() for file in stored.manifest.small_files}
    for name in sorted(checkpoint.small_files.keys() | kept.keys()):
        if checkpoint.small_files.get(name) != kept.get(name):
            raise _differs(f"{name} is not the source's")


def _check_tensors(checkpoint: Checkpoint, manifest: Manifest, header: Header) -> None:
    if checkpoint.architecture != manifest.architecture:
        raise _differs("its architecture is not the source's")
    wanted = {spec.name: (spec.dtype, spec.shape) for spec in checkpoint.specs}
    found = {name: (entry.dtype, entry.shape) for name, entry in header.tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise _differs(f"tensor {name} is missing, too many or of another shape")


def _differs(what: str) -> CorruptData:
    return CorruptData(f"the artifact differs: {what}; convert the source again", reason="ARTIFACT_DIFFERS")
