"""A certificate authority of the tests: certificates of servers and of their callers, made when they are asked for."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)
_LASTS = 90 * _DAY


class KeyPair(NamedTuple):
    """Files of a certificate and its private key (PEM)."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        folder: Where files go.
        name: Its own; two of one name are two authorities.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        uris: Sequence[str] = (),
        hosts: Sequence[str] = ("localhost",),
        addresses: Sequence[str] = ("127.0.0.1",),
        lasts: dt.timedelta = _LASTS,
    ) -> KeyPair:
        """A certificate for the holder of a fresh key; one that lasts less than no time has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        signed = (
            _builder(_named(name), self._name, key.public_key(), lasts)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = KeyPair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pair.key.touch(0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    lasts: dt.timedelta = _LASTS,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + lasts)
    )
