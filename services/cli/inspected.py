"""An artifact, or a weight file alone, as `halogen inspect` and `halogen diff` take it: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

from services.cli.console import CommandError, err
from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.header import Header, corrupt
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.signatures import SIGNATURES_NAME, Signature, Signatures
from services.common.checkpoint.verified_artifact import (
    check_scales,
    decode_header,
    read_header,
    verify_blocks,
    verify_small_files,
    verify_weights,
)
from services.common.errors import HalogenError


class Inspected(NamedTuple):
    """A weight file's header, and the artifact around it, with who signed it, if there is one."""

    header: Header
    manifest: Manifest | None
    signatures: tuple[Signature, ...] = ()

    @classmethod
    def open(cls, path: Path, *, quick: bool) -> Self:
        """Checks every byte of it, or, if it is to be `quick`, all but the blocks of the weights.

        Raises:
            CommandError: There is nothing, or it is damaged; the line says where, what is wrong, and the remedy.
        """
        try:
            with err.status("reading"):
                return (
                    cls._of_artifact(path, quick=quick)
                    if path.is_dir()
                    else cls._of_weights(path, quick=quick)
                )
        except HalogenError as fault:
            raise CommandError(f"{path}: {fault.message}") from None
        except OSError as fault:
            raise CommandError(
                f"{path} cannot be read: {fault.strerror}; run this as its owner, or copy it from elsewhere"
            ) from None

    @classmethod
    def _of_artifact(cls, directory: Path, *, quick: bool) -> Self:
        stored = StoredArtifact(directory, read_manifest(directory))
        verify_small_files(stored)
        header = read_header(stored)
        if not quick:
            verify_weights(stored)
        return cls(header, stored.manifest, _signatures(stored))

    @classmethod
    def _of_weights(cls, path: Path, *, quick: bool) -> Self:
        if not path.is_file():
            what = "a device or a pipe, no file" if path.exists() else "no such file or directory"
            raise CommandError(f"{path}: {what}; give an artifact: halogen inspect DIR")
        with path.open("rb") as weights:
            header, size_bytes = decode_header(weights), os.fstat(weights.fileno()).st_size
            if size_bytes != header.file_bytes:
                raise corrupt("length", f"the file has {size_bytes} bytes, not {header.file_bytes}")
            check_scales(weights, header)
            if not quick:
                verify_blocks(weights, header)
        return cls(header, None)


def _signatures(stored: StoredArtifact) -> tuple[Signature, ...]:
    try:
        return Signatures.decode(stored.signatures).entries
    except ValueError as fault:
        raise CommandError(
            f"{stored.directory}: {SIGNATURES_NAME} cannot be read: {fault}; remove it and sign again"
        ) from None
