"""An artifact as a source: converted again with other options. All of it is verified before any of it is used."""

from __future__ import annotations

from pathlib import Path

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.verified_artifact import read_header, verify_small_files, verify_weights
from services.loader.raw_checkpoint import RawCheckpoint
from services.loader.source_tensor import SourceTensor, StoredTensor, Table


def read_artifact(directory: Path) -> RawCheckpoint:
    """Reads and verifies every byte, with one block of memory.

    Raises:
        CorruptData: A file is missing, or does not match its digest.
        InvalidRequest: The weights are of another format or version.
    """
    stored = StoredArtifact(directory, read_manifest(directory))
    verify_small_files(stored)
    verify_weights(stored)
    small_files = {file.path: stored.path(file).read_bytes() for file in stored.manifest.small_files}
    return RawCheckpoint(small_files, Table(_tensors(stored), {}), stored.manifest.requires.hosts)


def _tensors(stored: StoredArtifact) -> dict[str, SourceTensor]:
    path = stored.path(stored.manifest.weights)
    return {
        entry.name: StoredTensor(
            path=path,
            name=entry.name,
            dtype=entry.dtype,
            shape=entry.shape,
            offset=entry.offset,
            nbytes=entry.nbytes,
        )
        for entry in read_header(stored).layout.entries
    }
