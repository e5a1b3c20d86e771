"""Keys that sign artifacts in tests, the same in every run."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from services.cli.signing_key import SigningKey
from services.common.checkpoint.signatures import Signatures, TrustedKeys
from services.common.ids import ArtifactId


def key(number: int) -> SigningKey:
    """One of 256 keys."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def signed_by(artifact_id: ArtifactId, *numbers: int) -> bytes:
    """The file of signatures that these keys' holders made."""
    signatures = Signatures()
    for number in numbers:
        signatures = signatures.signed(key(number).sign(artifact_id))
    return signatures.encode()


def trusting(*numbers: int) -> TrustedKeys:
    return TrustedKeys.parse(key(number).public_key for number in numbers)
