"""HTTPS stores: believed by the certificates that the loader was told, and by no others."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import PreconditionFailed, Unavailable
from services.loader.http_store import HttpOptions
from tests.unit.loader.cached import bring_all, content_of, open_cached
from tests.unit.loader.store_server import store_server


def make_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")]),
    )
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    unencrypted = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted)
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return path


async def test_a_store_over_https_is_trusted_by_its_certificate(
    tmp_path: Path, store: ArtifactStore, stored: StoredArtifact, cache_dir: Path
) -> None:
    """The one that was configured; by the system's alone it is nobody. No try is lost on plain text."""
    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    stranger, friend = (HttpOptions(tries=1, ca_file=ca_file) for ca_file in (None, certificate))
    async with store_server(store.root, tls) as server:
        async with open_cached(server.url, cache_dir, options=stranger) as artifacts:
            with pytest.raises(Unavailable, match="certificate"):
                await bring_all(artifacts, stored.manifest.id)
        assert [] == server.asked
        async with open_cached(server.url, cache_dir, options=friend) as artifacts:
            assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_certificates_that_cannot_be_read_end_the_start(
    tmp_path: Path, cache_dir: Path, content: bytes | None
) -> None:
    """In one line that names the setting."""
    ca_file = tmp_path / "ca.pem"
    if content is not None:
        ca_file.write_bytes(content)
    with pytest.raises(PreconditionFailed, match="--store-ca-file cannot be read"):
        async with open_cached("https://127.0.0.1/", cache_dir, options=HttpOptions(ca_file=ca_file)):
            pass
