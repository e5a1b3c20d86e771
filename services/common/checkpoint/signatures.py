"""Who vouches for an artifact: signatures over its id, in a file beside the manifest, and the keys that are trusted.

The id covers every byte of the artifact, so a signature of it (ed25519, RFC 8032) does. What is signed begins with
a text of its own, so that no signature made for another purpose passes for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from services.common.checkpoint import canonical
from services.common.checkpoint.fields import Fields
from services.common.errors import PreconditionFailed
from services.common.ids import ArtifactId

SIGNATURES_NAME: Final = "manifest.sig"
MAX_SIGNATURES: Final = 16
MAX_SIGNATURES_BYTES: Final = 8 << 10
UNTRUSTED: Final = "UNTRUSTED"  # the reason of a refusal

_DOMAIN: Final = b"halogen artifact signature v1\0"
_FORMAT: Final = "halogen signatures"
_VERSION: Final = 1
_PUBLIC_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{128}")
_SHOWN: Final = 12  # digits of a key, in messages


def signed_message(artifact_id: ArtifactId) -> bytes:
    """The bytes that are signed."""
    return _DOMAIN + bytes.fromhex(artifact_id)


class Signature(NamedTuple):
    """One signature, in hexadecimal digits: 64 of the key, 128 of the signature."""

    public_key: str
    signature: str

    def is_of(self, artifact_id: ArtifactId) -> bool:
        """Whether the holder of the key signed this artifact."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signature), signed_message(artifact_id))
        except (InvalidSignature, ValueError):
            return False
        return True

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Raises ValueError unless it is such an object."""
        fields = Fields(value, "signature")
        signature = cls(fields.take("public_key", str), fields.take("signature", str))
        fields.finish()
        if not (_PUBLIC_KEY.fullmatch(signature.public_key) and _SIGNATURE.fullmatch(signature.signature)):
            raise ValueError("a signature is not of 64 and 128 hexadecimal digits")
        return signature


class Signatures(NamedTuple):
    """All that are there, by key; one for each."""

    entries: tuple[Signature, ...] = ()

    def signed(self, signature: Signature) -> Self:
        """With one more, in place of what the same key signed before."""
        others = (each for each in self.entries if each.public_key != signature.public_key)
        return type(self)(tuple(sorted((*others, signature))))

    def of(self, artifact_id: ArtifactId) -> Self:
        """Those that are of this artifact."""
        return type(self)(tuple(each for each in self.entries if each.is_of(artifact_id)))

    def encode(self) -> bytes:
        """The content of the file."""
        signatures = [each._asdict() for each in self.entries]
        return canonical.encode({"format": _FORMAT, "signatures": signatures, "version": _VERSION})

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Reads what `encode` gave; nothing holds none. Raises ValueError on anything else."""
        if not content:
            return cls()
        if len(content) > MAX_SIGNATURES_BYTES:
            raise ValueError(f"more than {MAX_SIGNATURES_BYTES} bytes")
        fields = Fields(canonical.decode(content), "file")
        if (fields.take("format", str), fields.take("version", int)) != (_FORMAT, _VERSION):
            raise ValueError(f"not {_FORMAT} of version {_VERSION}")
        entries = tuple(Signature.from_fields(value) for value in fields.take("signatures", list))
        fields.finish()
        if len(entries) > MAX_SIGNATURES or list(entries) != sorted(entries):
            raise ValueError(f"more than {MAX_SIGNATURES} signatures, or not sorted")
        return cls(entries)


class TrustedKeys(NamedTuple):
    """Public keys; where there are any, only what the holder of one has signed is taken."""

    keys: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Reads keys as `halogen keygen` prints them; raises ValueError where one is none."""
        keys = frozenset(texts)
        for key in keys:
            if not _PUBLIC_KEY.fullmatch(key):
                raise ValueError(f"{key[:80]!r} is no public key: 64 hexadecimal digits, from halogen keygen")
        return cls(keys)

    def check(self, artifact_id: ArtifactId, signatures: bytes) -> None:
        """Judges the content of an artifact's file of signatures, empty where there is none.

        Raises:
            PreconditionFailed: Keys are trusted, and none of them has signed this artifact.
        """
        if self.keys and (why := self._objection(artifact_id, signatures)):
            raise PreconditionFailed(
                f"{UNTRUSTED}: artifact {artifact_id[:_SHOWN]} {why}; publish it again once a trusted "
                "key has signed it: halogen sign DIR --key FILE",
                reason=UNTRUSTED,
            )

    def accepts(self, artifact_id: ArtifactId, signatures: bytes) -> bool:
        """Whether `check` would have nothing against it."""
        return not self.keys or not self._objection(artifact_id, signatures)

    def _objection(self, artifact_id: ArtifactId, content: bytes) -> str:
        try:
            entries = Signatures.decode(content).entries
        except ValueError as fault:
            return f"has a {SIGNATURES_NAME} that cannot be read ({fault})"
        if not entries:
            return "is not signed"
        ours = [each for each in entries if each.public_key in self.keys]
        if not ours:
            signers = ", ".join(each.public_key[:_SHOWN] for each in entries)
            return f"is signed by {signers}, and none of these keys is trusted here"
        if not any(each.is_of(artifact_id) for each in ours):
            return f"has a signature of key {ours[0].public_key[:_SHOWN]} that is not of this artifact"
        return ""


ANYBODY: Final = TrustedKeys()  # nobody has said whom to trust
