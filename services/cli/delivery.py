"""An artifact's way from a directory into the store that the loaders read."""

from __future__ import annotations

from pathlib import Path

from services.cli.console import CommandError, err
from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact, read_manifest
from services.common.checkpoint.verified_artifact import read_header, verify_small_files, verify_weights


def deliver(artifact: Path, store: ArtifactStore, *, replace: bool) -> StoredArtifact:
    """Puts an artifact into the store and returns it as it is there; says so where the store's own files are used.

    The weights' blocks are left to the loader, unless the files shall `replace` those in the store: good ones must
    not give way to bad ones.

    Raises:
        InvalidRequest: `artifact` is no artifact directory.
        CorruptData: Its files are not what its manifest says.
        CommandError: The store cannot be written.
    """
    given = StoredArtifact(artifact, read_manifest(artifact))
    verify_small_files(given)
    read_header(given)
    try:
        if replace:
            store.replace(artifact, verify_weights)
        else:
            if store.holds(given.manifest.id):
                err.print(
                    f"artifact {given.manifest.id[:12]} is already in the store, whose files are used "
                    "(--reverify replaces them)"
                )
            store.put(artifact)
    except OSError as fault:
        where = fault.filename or store.root
        raise CommandError(
            f"the store {store.root} cannot be written: {where}: {fault.strerror}; give another --store"
        ) from None
    return store.open(given.manifest.id)
