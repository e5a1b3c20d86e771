"""Signatures: over the id and so over every byte, told apart by key, and judged by the keys that are trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact, read_manifest
from services.common.checkpoint.signatures import (
    MAX_SIGNATURES,
    SIGNATURES_NAME,
    Signature,
    Signatures,
    TrustedKeys,
    signed_message,
)
from services.common.errors import CorruptData, PreconditionFailed
from services.common.ids import ArtifactId
from tests.signing import key, signed_by, trusting
from tests.tiny_checkpoints import make_tiny_artifact

ONE, OTHER = ArtifactId("ab" * 32), ArtifactId("cd" * 32)


def test_what_is_signed_says_what_for() -> None:
    """A signature of the bare id, made for something else, is none of an artifact."""
    assert signed_message(ONE) == b"halogen artifact signature v1\0" + bytes.fromhex(ONE)
    bare = Signature(key(1).public_key, key(1)._key.sign(bytes.fromhex(ONE)).hex())
    assert (True, False) == (key(1).sign(ONE).is_of(ONE), bare.is_of(ONE))


# Turns red when: Signature.is_of or TrustedKeys._objection leaves out what the case is named after.
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "is not signed", id="missing"),
        pytest.param(Signatures().encode(), "is not signed", id="none"),
        pytest.param(signed_by(ONE, 3), "none of these keys is trusted here", id="wrong key"),
        pytest.param(signed_by(OTHER, 1), "not of this artifact", id="another artifact's"),
        pytest.param(b"{", "cannot be read", id="torn"),
        pytest.param(b"\xff" * 64, "cannot be read", id="no text"),
        pytest.param(signed_by(ONE, 1) + b"\n", "cannot be read", id="one byte more"),
        pytest.param(b"x" * 9000, "cannot be read", id="too long"),
        pytest.param(
            Signatures((Signature(key(1).public_key, "0" * 128),)).encode(),
            "not of this artifact",
            id="zeros",
        ),
        pytest.param(
            Signatures((Signature(key(1).public_key, key(3).sign(ONE).signature),)).encode(),
            "not of this artifact",
            id="a stranger's under a trusted name",
        ),
    ],
)
def test_what_is_not_signed_by_a_trusted_key_is_untrusted(content: bytes, expected: str) -> None:
    """The reason is named, with the remedy."""
    with pytest.raises(PreconditionFailed, match=f"UNTRUSTED: .*{expected}.*halogen sign") as raised:
        trusting(1, 2).check(ONE, content)
    assert "UNTRUSTED" == raised.value.reason


def test_one_trusted_key_is_enough() -> None:
    """While keys are replaced, artifacts signed by the old, the new or both are taken."""
    for numbers in ((1,), (2,), (1, 2), (1, 2, 3)):
        trusting(1, 2).check(ONE, signed_by(ONE, *numbers))
    forged = Signatures.decode(signed_by(ONE, 2)).signed(Signature(key(1).public_key, "0" * 128))
    trusting(1, 2).check(ONE, forged.encode())


def test_with_no_trusted_key_everything_is_taken() -> None:
    """Nobody has said whom to trust."""
    for content in (b"", b"{", signed_by(OTHER, 9)):
        TrustedKeys().check(ONE, content)


def test_signing_again_replaces_and_keeps_the_others() -> None:
    """One signature for each key, in order of the keys, up to a bound."""
    twice = Signatures.decode(signed_by(ONE, 1, 2)).signed(key(1).sign(OTHER))
    assert 2 == len(twice.entries)
    assert {key(1).public_key: True, key(2).public_key: False} == {
        each.public_key: each.is_of(OTHER) for each in twice.entries
    }
    assert twice == Signatures.decode(twice.encode())
    with pytest.raises(ValueError, match="more than"):
        Signatures.decode(signed_by(ONE, *range(MAX_SIGNATURES + 1)))


@pytest.mark.parametrize("text", ["", "ab" * 31, "AB" * 32, "zz" * 32, "ab" * 33])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    """In the configuration, before anything is started."""
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        TrustedKeys.parse([text])


def test_a_changed_file_is_no_longer_what_was_signed(tmp_path: Path) -> None:
    """Whoever changes a file and makes the manifest say so has another artifact, which nobody has signed."""
    one, signed = make_tiny_artifact(tmp_path, seed=1)
    other, changed = make_tiny_artifact(tmp_path, seed=2)
    StoredArtifact(one, signed).write_signatures(signed_by(signed.id, 1))
    trusting(1).check(signed.id, StoredArtifact(one, signed).signatures)
    (one / SIGNATURES_NAME).rename(other / SIGNATURES_NAME)
    with pytest.raises(PreconditionFailed, match="not of this artifact"):
        trusting(1).check(changed.id, StoredArtifact(other, changed).signatures)


def test_signatures_go_with_the_artifact_and_come_after_it(tmp_path: Path) -> None:
    """The store takes them with the files, and alone when it has those already; the id is the same."""
    source, manifest = make_tiny_artifact(tmp_path)
    store, given = ArtifactStore(tmp_path / "store"), StoredArtifact(source, manifest)
    store.put(source)
    assert b"" == store.open(manifest.id).signatures
    for numbers in ((1,), (1, 2)):
        given.write_signatures(signed_by(manifest.id, *numbers))
        assert manifest.id == store.put(source)
        assert given.signatures == store.open(manifest.id).signatures
    given.write_signatures(signed_by(manifest.id, 3))
    store.replace(source, lambda _: None)
    assert given.signatures == store.open(manifest.id).signatures
    (source / SIGNATURES_NAME).unlink()
    store.put(source)
    assert signed_by(manifest.id, 3) == store.open(manifest.id).signatures
    store.open(manifest.id).check()
    assert [manifest.id] == [path.name for path in store.root.iterdir()]
    assert manifest == read_manifest(source)


def test_a_link_is_no_file_of_signatures(tmp_path: Path) -> None:
    """As with every file of an artifact."""
    source, manifest = make_tiny_artifact(tmp_path)
    (source / SIGNATURES_NAME).symlink_to("/etc/hostname")
    with pytest.raises(CorruptData, match="not a plain file"):
        _ = StoredArtifact(source, manifest).signatures
