"""A private key that signs artifacts, in a file that only its owner reads (PEM, PKCS #8)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from services.cli.console import CommandError
from services.common.checkpoint.signatures import Signature, signed_message
from services.common.ids import ArtifactId

_MAX_FILE_BYTES: Final = 4096


class SigningKey:
    """One ed25519 key.

    Args:
        key: The private key itself.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def create(cls, path: Path) -> Self:
        """Makes a key and writes it to `path`.

        Raises:
            CommandError: The file is there already, or cannot be written.
        """
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError as fault:
            raise CommandError(f"{path}: {fault.strerror}; give a FILE that is not there yet") from None
        return cls(key)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what `create` wrote.

        Raises:
            CommandError: It is not there, no plain file, no such key, or not its owner's alone.
        """
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                _check_file(path, os.fstat(file.fileno()).st_mode)
                key = load_pem_private_key(file.read(_MAX_FILE_BYTES), password=None)
        except OSError as fault:
            raise CommandError(f"{path}: {fault.strerror}; make a key with: halogen keygen {path}") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise _no_key(path) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise _no_key(path)
        return cls(key)

    @property
    def public_key(self) -> str:
        """64 hexadecimal digits."""
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, artifact_id: ArtifactId) -> Signature:
        return Signature(self.public_key, self._key.sign(signed_message(artifact_id)).hex())


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes to is opened, too, and can then be refused."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_file(path: Path, mode: int) -> None:
    """Raises CommandError for what is no plain file, and where group or others may do anything with it."""
    if not stat.S_ISREG(mode):
        raise CommandError(f"{path} is no plain file; give the FILE that was made by: halogen keygen FILE")
    rights = stat.S_IMODE(mode)
    if rights & (stat.S_IRWXG | stat.S_IRWXO):
        raise CommandError(
            f"{path} is open to others than its owner (mode {rights:04o}); run: chmod 600 {path}"
        )


def _no_key(path: Path) -> CommandError:
    return CommandError(
        f"{path} holds no ed25519 private key without password; make one: halogen keygen FILE"
    )
