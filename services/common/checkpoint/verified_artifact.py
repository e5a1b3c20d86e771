"""An artifact's files read for the first time: nothing is believed that no digest vouches for."""

from __future__ import annotations

from collections.abc import Collection
from typing import BinaryIO

from services.common.checkpoint.artifact_directory import mismatch
from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import block_digest, sha256_hex, split_blocks
from services.common.checkpoint.header import PREAMBLE, Header, corrupt, header_bytes
from services.common.checkpoint.manifest import Manifest, ManifestFile
from services.common.checkpoint.quantisation import check_finite, scale_names


def verify_small(content: bytes, file: ManifestFile) -> bytes:
    """Returns `content` if it is the file that the manifest names.

    Raises:
        CorruptData: It is not.
    """
    if len(content) != file.size_bytes or sha256_hex(content) != file.sha256:
        raise mismatch(file, "content", "does not match the manifest")
    return content


def verify_small_files(stored: StoredArtifact, absent: Collection[str] = ()) -> int:
    """Checks every file but the weights; returns their bytes.

    Args:
        stored: The artifact.
        absent: Names of files that may be missing as yet.

    Raises:
        CorruptData: One is missing or wrong, or the directory holds something else beside them.
    """
    stored.check(absent)
    for file in stored.manifest.small_files:
        with stored.open(file) as opened:
            verify_small(opened.read(file.size_bytes + 1), file)
    return sum(file.size_bytes for file in stored.manifest.small_files)


def read_header(stored: StoredArtifact) -> Header:
    """The header of the weights, vouched for by the manifest.

    Raises:
        CorruptData: It is ill-formed, not the manifest's, the file has another size, or a scale is not finite.
        InvalidRequest: The file is of another format or version.
    """
    file = stored.manifest.weights
    with stored.open(file) as weights:
        header = decode_header(weights)
        check_header(header, stored.manifest)
        check_scales(weights, header)
    return header


def check_header(header: Header, manifest: Manifest) -> None:
    """Raises CorruptData unless it is the header of the weights that the manifest names."""
    file = manifest.weights
    if header.identity != file.sha256 or header.file_bytes != file.size_bytes:
        raise mismatch(file, "header", "has another header than the manifest names")
    _check_model(header, manifest)


def _check_model(header: Header, manifest: Manifest) -> None:
    """What was promised before the download is what has come; raises CorruptData otherwise."""
    requires = manifest.requires
    if header.derived is not None:
        raise mismatch(manifest.weights, "header", "was derived from the weights of an artifact, and is none")
    if header.architecture != manifest.architecture:
        raise mismatch(manifest.weights, "header", "is of another architecture than the manifest says")
    if parts := header.graph.differing(requires.graph):
        raise mismatch(
            manifest.weights, "header", f"has another graph ({', '.join(parts)}) than the manifest says"
        )
    if header.precisions != requires.precisions:
        raise mismatch(manifest.weights, "header", "holds tensors of other dtypes than the manifest says")


def decode_header(weights: BinaryIO) -> Header:
    """The header of a file whose position is its start; reads no further.

    Raises:
        CorruptData: It is ill-formed.
        InvalidRequest: The file is of another format or version.
    """
    start = weights.read(PREAMBLE.size)
    return Header.decode(start + weights.read(header_bytes(start) - len(start)))


def check_scales(weights: BinaryIO, header: Header) -> None:
    """Reads the scales, a small part of the file; raises CorruptData if one is not a finite number."""
    for name in sorted(scale_names(header.layout.entries)):
        entry = header.tensors[name]
        weights.seek(entry.offset)
        try:
            check_finite(weights.read(entry.nbytes), entry)
        except ValueError as fault:
            raise corrupt("scales", fault) from None


def verify_weights(stored: StoredArtifact) -> None:
    """Reads the weights and checks every block, with one block of memory.

    Raises:
        CorruptData: The header or a block is wrong.
        InvalidRequest: The file is of another format or version.
    """
    header = read_header(stored)
    with stored.open(stored.manifest.weights) as weights:
        verify_blocks(weights, header)


def verify_blocks(weights: BinaryIO, header: Header) -> None:
    """Reads the data under that header; raises CorruptData where a block is wrong."""
    weights.seek(header.data_offset)
    for number, (begin, end) in enumerate(split_blocks(header.data_bytes)):
        if block_digest(weights.read(end - begin)) != header.digests[number]:
            raise header.block_mismatch(number, "does not match its digest")
