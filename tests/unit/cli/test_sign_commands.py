"""`halogen keygen` and `halogen sign`: a key that only its owner reads, and signatures that loaders and gateways take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.signatures import MAX_SIGNATURES, Signatures, TrustedKeys
from services.common.errors import CorruptData
from tests.signing import key, signed_by
from tests.tiny_checkpoints import make_tiny_artifact


def halogen(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def keygen(path: Path) -> str:
    result = halogen("keygen", path)
    assert 0 == result.exit_code
    return result.output.strip()


def test_an_artifact_is_signed_and_shown_as_signed(tmp_path: Path) -> None:
    """Two keys, one after the other: both signatures hold, and inspect tells whose they are."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    publics = [keygen(tmp_path / name) for name in ("old.key", "new.key")]
    for name in ("old.key", "new.key"):
        assert 0 == halogen("sign", artifact, "--key", tmp_path / name).exit_code
    stored = StoredArtifact(artifact, read_manifest(artifact))
    for public in publics:
        TrustedKeys.parse([public]).check(manifest.id, stored.signatures)
    told: dict[str, Any] = json.loads(halogen("inspect", artifact, "--json").output)
    assert [{"public_key": public, "is_of_this_artifact": True} for public in sorted(publics)] == told[
        "signatures"
    ]
    assert publics[0] in halogen("inspect", artifact).output


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    """Mode 0600, and a second keygen says that the file is there."""
    keygen(tmp_path / "a.key")
    assert 0o600 == (tmp_path / "a.key").stat().st_mode & 0o777
    before = (tmp_path / "a.key").read_bytes()
    assert "not there yet" in str(halogen("keygen", tmp_path / "a.key").exception)
    assert before == (tmp_path / "a.key").read_bytes()


def test_what_is_no_key_is_one_line(tmp_path: Path) -> None:
    """Missing, no PEM, or a key of another kind."""
    artifact, _ = make_tiny_artifact(tmp_path)
    other = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, expected in (
        (None, "halogen keygen"),
        (b"x", "no ed25519 private key"),
        (other, "no ed25519"),
    ):
        if content is not None:
            (tmp_path / "bad.key").write_bytes(content)
            (tmp_path / "bad.key").chmod(0o600)
        assert expected in str(halogen("sign", artifact, "--key", tmp_path / "bad.key").exception)


def test_a_pipe_is_no_key_and_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes to it. Fault injection: hangs when it is opened to block, and turns red unless its kind is looked at."""
    artifact, _ = make_tiny_artifact(tmp_path)
    os.mkfifo(tmp_path / "p.key", 0o600)
    told = str(halogen("sign", artifact, "--key", tmp_path / "p.key").exception)
    assert (
        f"{tmp_path / 'p.key'} is no plain file; give the FILE that was made by: halogen keygen FILE" == told
    )


def test_nobody_signs_what_is_damaged(tmp_path: Path) -> None:
    """Every byte is looked at first. Fault injection: `sign` leaves verify_weights out."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    keygen(tmp_path / "a.key")
    weights = artifact / manifest.weights.path
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptData, match="block 0"):
        raise halogen("sign", artifact, "--key", tmp_path / "a.key").exception or AssertionError
    assert b"" == StoredArtifact(artifact, manifest).signatures


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_private_key_that_others_may_touch_is_not_used(tmp_path: Path, mode: int) -> None:
    """As ssh has it. Turns red when: SigningKey.read does not look at the mode."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    keygen(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    result = halogen("sign", artifact, "--key", tmp_path / "a.key")
    assert str(result.exception).endswith(f"(mode 0{mode:o}); run: chmod 600 {tmp_path / 'a.key'}")
    assert b"" == StoredArtifact(artifact, manifest).signatures


def test_a_signature_of_another_artifact_goes_and_is_told(tmp_path: Path) -> None:
    """What was copied along, or forged, vouches for nothing. Turns red when: `sign` keeps whatever is there."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    _, other = make_tiny_artifact(tmp_path, seed=1)
    stored = StoredArtifact(artifact, manifest)
    stale = Signatures.decode(signed_by(other.id, 3)).entries[0]
    stored.write_signatures(Signatures.decode(signed_by(manifest.id, 2)).signed(stale).encode())
    public = keygen(tmp_path / "a.key")
    result = halogen("sign", artifact, "--key", tmp_path / "a.key")
    assert f"removed the signature of key {key(3).public_key}: it is not of this artifact\n" == result.stderr
    kept = {each.public_key for each in Signatures.decode(stored.signatures).entries}
    assert {public, key(2).public_key} == kept


def test_a_full_file_of_signatures_takes_no_more_but_one_again(tmp_path: Path) -> None:
    """A signature that is there already needs no room."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    stored = StoredArtifact(artifact, manifest)
    for name in ("a.key", "b.key"):
        keygen(tmp_path / name)
    stored.write_signatures(signed_by(manifest.id, *range(MAX_SIGNATURES - 1)))
    assert [0, 0] == [halogen("sign", artifact, "--key", tmp_path / "a.key").exit_code for _ in range(2)]
    assert "has 16 signatures" in str(halogen("sign", artifact, "--key", tmp_path / "b.key").exception)
