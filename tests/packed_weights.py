"""An artifact's weights in PACKED32, as a loader would derive them, without a loader."""

from __future__ import annotations

from pathlib import Path

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.checkpoint.packed_file import PackedFile
from services.common.checkpoint.verified_artifact import read_header


def write_packed(artifact: Path, to: Path) -> Header:
    """Writes the file that is derived of an artifact's weights; returns its header.

    Args:
        artifact: The artifact's directory.
        to: The file to be.
    """
    stored = StoredArtifact(artifact, read_manifest(artifact))
    whole = stored.path(stored.manifest.weights).read_bytes()
    file = PackedFile.plan(read_header(stored))
    memory = bytearray(file.header.file_bytes)
    for move in file.moves:
        move.put(memoryview(whole), 0, memoryview(memory))
    data = memory[file.header.data_offset :]
    digests = [block_digest(data[begin:end]) for begin, end in split_blocks(len(data))]
    header = file.header.with_digests(tuple(digests))
    memory[: header.data_offset] = header.encode()
    to.write_bytes(memory)
    return header
