"""Certificates: whom they name, and what is refused of their files before anybody calls."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from services.common.auth.certificate import holder_of
from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tls import RENEW_BEFORE, KeyPair
from services.common.config import ProcessConfig
from services.common.errors import Unauthenticated
from services.common.rpc.credentials import Credentials
from tests.certificates import Authority
from tests.credentials import write_secret


class Config(ProcessConfig):
    role = "engine"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_a_certificate_names_its_caller() -> None:
    """By one URI of ours; others', for example a mesh's, say nothing."""
    uris = ["spiffe://cluster/ns/default", "halogen:system/engine-1"]
    assert Principal("engine-1", Role.SYSTEM) == holder_of(uris)


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["spiffe://cluster/halogen:admin/x"],
        ["halogen:admin/a", "halogen:infer/a"],
        ["halogen:root/a"],
        ["halogen:admin"],
        ["halogen:admin/a/b"],
    ],
    ids=str,
)
def test_a_certificate_that_names_no_single_caller_is_nobodys(uris: list[str]) -> None:
    """None, two, another role: that its authority is ours is not enough.

    Fault injection: turns red when the first URI is taken.
    """
    with pytest.raises(Unauthenticated, match="URI:halogen:ROLE/NAME"):
        holder_of(uris)


def test_key_and_certificate_belong_together(authority: Authority, tmp_path: Path) -> None:
    """What the handshake would fail of, without words, is said at birth."""
    one, other = authority.issue("one"), authority.issue("other")
    assert KeyPair.read(*one) is not None
    assert KeyPair.read(None, None) is None
    write_secret(tmp_path / "none", "no key")
    for pair, words in (
        ((one.certificate, other.key), "is not the key of"),
        ((one.certificate, None), "give both"),
        ((one.certificate, tmp_path / "none"), "no private key"),
        ((tmp_path / "none", one.key), "no certificate"),
        ((tmp_path / "absent", one.key), "no such file"),
    ):
        with pytest.raises(ValueError, match=words):
            KeyPair.read(*pair)
    one.key.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        KeyPair.read(*one)


def test_an_expired_certificate_is_refused_and_one_that_expires_soon_told(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the start, with the day: a handshake would fail of it without words.

    Fault injection: turns red when `KeyPair.read` does not look at the date, or `expiring` tells every certificate.
    """
    hour, now = dt.timedelta(hours=1), dt.datetime.now(dt.UTC)
    expired, soon, later = (
        authority.issue(f"lasts-{index}", lasts=lasts)
        for index, lasts in enumerate((-hour, RENEW_BEFORE - hour, RENEW_BEFORE + hour))
    )
    with pytest.raises(SystemExit):
        Config.load(["--tls-cert-file", str(expired.certificate), "--tls-key-file", str(expired.key)])
    assert f"--tls-cert-file {expired.certificate} has expired" in capsys.readouterr().err
    told = [
        Config(tls_cert_file=pair.certificate, tls_key_file=pair.key).expiring(now) for pair in (soon, later)
    ]
    assert [True, False] == [each is not None for each in told]
    assert Config().expiring(now) is None


def test_settings_that_need_others_say_so(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    """One line: which are needed."""
    for flags, words in (
        (["--tls-client-ca-file", authority.certificate], "give --tls-cert-file and --tls-key-file"),
        (["--tls-server-name", "halogen"], "needs --tls-ca-file"),
        (["--tls-key-file", authority.certificate], "give both"),
    ):
        with pytest.raises(SystemExit):
            Config.load([str(flag) for flag in flags])
        assert words in capsys.readouterr().err


def test_certificates_of_callers_open_a_listen_beyond_loopback(authority: Authority) -> None:
    """They are credentials; a server's own certificate alone is none."""
    pair = authority.issue("server")
    own: dict[str, Any] = {"tls_cert_file": pair.certificate, "tls_key_file": pair.key}
    anywhere = Config.load(["--listen", "127.0.0.1:0"]).listen._replace(host="0.0.0.0")
    assert Config(listen=anywhere, tls_client_ca_file=authority.certificate, **own).door.access is not None
    with pytest.raises(ValueError, match="beyond loopback"):
        Config(listen=anywhere, **own)


def test_a_process_shows_its_certificate_where_it_calls_by_tls(authority: Authority) -> None:
    """With the authority that vouches for the others; without it calls go in the clear, to those who take them so."""
    pair = authority.issue("process")
    own: dict[str, Any] = {"tls_cert_file": pair.certificate, "tls_key_file": pair.key}
    assert Config(**own).credentials.tls is None
    tls = Config(tls_ca_file=authority.certificate, tls_server_name="halogen", **own).credentials.tls
    assert tls is not None
    assert (KeyPair.read(*pair), "halogen") == (tls.own, tls.server_name)
    assert "PRIVATE" not in repr(tls)
    assert Credentials.of(ca_file=authority.certificate).tls is not None
