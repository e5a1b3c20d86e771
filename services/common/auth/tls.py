"""Certificates and keys of the two sides of a connection, as bytes (PEM)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from services.common.secret_file import read_secret

RENEW_BEFORE: Final = dt.timedelta(days=14)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate, with those that link it to its authority, and its private key."""

    certificates: bytes
    key: bytes = dataclasses.field(repr=False)

    @classmethod
    def read(cls, cert_file: Path | None, key_file: Path | None) -> Self | None:
        """Reads both; None where neither is given.

        Raises:
            ValueError: One alone is given, one cannot be read or is none, they are not of each other, or the certificate
                has expired: nobody would speak with its holder.
        """
        if cert_file is None and key_file is None:
            return None
        if cert_file is None or key_file is None:
            raise ValueError("--tls-cert-file and --tls-key-file need each other: give both")
        pair = cls(read_certificates(cert_file, "--tls-cert-file"), read_secret(key_file, "--tls-key-file"))
        try:
            key = load_pem_private_key(pair.key, password=None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError(f"--tls-key-file {key_file}: no private key without password (PEM)") from None
        certified = load_pem_x509_certificates(pair.certificates)[0].public_key()
        if _encoded(key) != _encoded(certified):
            raise ValueError(f"--tls-key-file {key_file} is not the key of --tls-cert-file {cert_file}")
        if pair.expires <= dt.datetime.now(dt.UTC):
            raise ValueError(f"--tls-cert-file {cert_file} has expired at {pair.expires:%FT%TZ}; renew it")
        return pair

    @property
    def expires(self) -> dt.datetime:
        """When the certificate ends, UTC."""
        return load_pem_x509_certificates(self.certificates)[0].not_valid_after_utc


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server shows; with `client_ca`, callers must show a certificate that it vouches for."""

    own: KeyPair
    client_ca: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallerTls:
    """How a caller knows servers, and what it shows to those that ask.

    Attributes:
        ca: Vouches for servers; the system's authorities do when None.
        own: Shown to servers that ask for a certificate.
        server_name: The name in servers' certificates; the host in their address when empty.
    """

    ca: bytes | None = None
    own: KeyPair | None = None
    server_name: str = ""


def read_certificates(path: Path, setting: str) -> bytes:
    """One or more certificates (PEM); raises ValueError where the file has none."""
    try:
        content = path.read_bytes()
        load_pem_x509_certificates(content)
    except OSError as fault:
        raise ValueError(f"{setting} {path}: {(fault.strerror or 'cannot be read').lower()}") from None
    except ValueError:
        raise ValueError(f"{setting} {path}: no certificate (PEM)") from None
    return content


def _encoded(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
