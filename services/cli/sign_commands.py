"""`halogen keygen` and `halogen sign`: vouching for artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import CommandError, err, out
from services.cli.options import JsonOption
from services.cli.signing_key import SigningKey
from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.signatures import MAX_SIGNATURES, SIGNATURES_NAME, Signatures
from services.common.checkpoint.verified_artifact import verify_small_files, verify_weights


def keygen(
    file: Annotated[Path, typer.Argument(help="Where the private key goes; not there yet.")],
    as_json: JsonOption = False,
) -> None:
    """Make a key that signs artifacts; prints the public one, for --trusted-keys of loaders and gateways."""
    public_key = SigningKey.create(file).public_key
    out.print(json.dumps({"public_key": public_key}) if as_json else public_key)


def sign(
    artifact: Annotated[Path, typer.Argument(help="An artifact directory.")],
    key: Annotated[Path, typer.Option("--key", help="The private key, from `halogen keygen`.")],
    as_json: JsonOption = False,
) -> None:
    """Vouch for an artifact, after a look at every byte of it; what others have signed of it stays."""
    signer, stored = SigningKey.read(key), StoredArtifact(artifact, read_manifest(artifact))
    verify_small_files(stored)
    verify_weights(stored)
    signature = signer.sign(stored.manifest.id)
    signatures = _kept(stored).signed(signature)
    if len(signatures.entries) > MAX_SIGNATURES:
        raise CommandError(f"{SIGNATURES_NAME} has {MAX_SIGNATURES} signatures; remove it and sign again")
    try:
        stored.write_signatures(signatures.encode())
    except OSError as fault:
        raise CommandError(f"{artifact} cannot be written: {fault.strerror}; sign a copy of it") from None
    result = {"artifact_id": stored.manifest.id, "public_key": signature.public_key}
    told = f"{stored.manifest.id} is signed by {signature.public_key}"
    out.print(json.dumps(result) if as_json else told)


def _kept(stored: StoredArtifact) -> Signatures:
    """The signatures that are of this artifact; those of another go, and each is told."""
    try:
        present = Signatures.decode(stored.signatures)
    except ValueError as fault:
        raise CommandError(
            f"{stored.directory / SIGNATURES_NAME} cannot be read ({fault}); remove it and sign again"
        ) from None
    kept = present.of(stored.manifest.id)
    for stale in sorted({*present.entries} - {*kept.entries}):
        err.print(f"removed the signature of key {stale.public_key}: it is not of this artifact")
    return kept
