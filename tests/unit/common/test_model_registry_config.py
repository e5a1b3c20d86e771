"""How processes are told of a registry of models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.common.registry.publish_records import SyncStatus
from services.scheduler.config import SchedulerConfig

URL = "https://registry:81/models/"


def load(folder: Path, *flags: str) -> SchedulerConfig:
    key = folder / "ticket.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    return SchedulerConfig.load(["--ticket-key-file", str(key), *flags])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), None),
        (("--registry.push", "auto"), None),
        (("--registry.url", URL), SyncStatus.PENDING),
        (("--registry.url", URL, "--registry.push", "manual"), None),
    ],
)
def test_commits_are_pushed_where_a_registry_is_named(
    tmp_path: Path, flags: tuple[str, ...], expected: SyncStatus | None
) -> None:
    """Every one, unless it is said otherwise; without a registry nothing is."""
    assert expected is load(tmp_path, *flags).sync_status


def test_the_section_may_come_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all processes alike, also those settings that one of them has no use for."""
    monkeypatch.setenv("HALOGEN_REGISTRY__URL", URL)
    assert URL == load(tmp_path).registry.url


@pytest.mark.parametrize("given", ["nan", "inf"])
def test_a_time_that_is_no_number_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """Rather than to be out of bounds. Fault injection: turns red without `allow_inf_nan`."""
    with pytest.raises(SystemExit):
        load(tmp_path, "--registry.timeout-s", given)
    assert "--registry.timeout-s: should be a finite number" in capsys.readouterr().err


def test_a_variable_with_one_underscore_is_told() -> None:
    """The section's name is parted from the setting's by two."""
    assert {"HALOGEN_REGISTRY_PUSH": "HALOGEN_REGISTRY__PUSH"} == SchedulerConfig.misspelt(
        ["HALOGEN_REGISTRY_PUSH", "HALOGEN_REGISTRY__PUSH"]
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://registry/", "http://host:port/path/"),
        ("https://registry/?a=b", "no query"),
        ("https://registry/a/../b", r"without \. and \.\."),
        ("https://me:secret@registry/", "no user in it, but --registry.token-file"),
    ],
)
def test_a_url_with_more_than_a_plain_path_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, expected: str
) -> None:
    """In one line that names the setting and says nothing that is secret."""
    with pytest.raises(SystemExit):
        load(tmp_path, "--registry.url", url)
    line = capsys.readouterr().err
    assert ("--registry.url" in line, "secret" in line) == (True, False)
    assert re.search(expected, line)
