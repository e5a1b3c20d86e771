"""`halogen cache`: what operators see and say of a host's cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.console import CommandError
from services.cli.main import app
from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.manifest import Manifest
from tests.tiny_checkpoints import make_tiny_artifact


@pytest.fixture
def cached(tmp_path: Path) -> Manifest:
    """An artifact in the cache below `tmp_path`; of its files none has come."""
    _, manifest = make_tiny_artifact(tmp_path)
    CacheDirectory.of(tmp_path).admit(manifest).release()
    return manifest


def cache(tmp_path: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", *arguments, "--cache-dir", str(tmp_path)])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert 0 == result.exit_code, result.output
    return result.stdout


def listed(tmp_path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cache(tmp_path, "list", "--json"))
    return found


def test_an_artifact_is_pinned_and_let_go(tmp_path: Path, cached: Manifest) -> None:
    """By its id or the beginning of it."""
    assert [(cached.id, False)] == [(each["artifact_id"], each["pinned"]) for each in listed(tmp_path)]
    cache(tmp_path, "pin", cached.id[:8])
    assert [(cached.id, True)] == [(each["artifact_id"], each["pinned"]) for each in listed(tmp_path)]
    assert "pinned" in cache(tmp_path, "list")
    cache(tmp_path, "unpin", cached.id)
    assert [False] == [each["pinned"] for each in listed(tmp_path)]


def test_a_pin_before_the_artifact_is_listed(tmp_path: Path, cached: Manifest) -> None:
    """So that nobody forgets it."""
    coming = "0" * 64
    cache(tmp_path, "pin", coming)
    assert f"{coming}  pinned, not there yet" in cache(tmp_path, "list")
    assert {cached.id, coming} == {each["artifact_id"] for each in listed(tmp_path)}


@pytest.mark.parametrize("given", ["", "nothing", "../x"])
def test_what_names_no_artifact_is_refused(tmp_path: Path, cached: Manifest, given: str) -> None:
    """The line says where to look."""
    with pytest.raises(CommandError, match=r"no artifact of the cache begins with .*halogen cache list"):
        cache(tmp_path, "pin", given)


def test_a_cache_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    """With the remedy."""
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="give --cache-dir"):
        cache(tmp_path / "file", "list")


@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("pin", "0" * 64), ("unpin", "0" * 64)])
def test_where_no_loader_has_made_a_cache_there_is_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Nor is one made, which would be this user's. Turns red when: _open makes what is not there."""
    with pytest.raises(CommandError, match=rf"there is no cache in {tmp_path}/absent: .*give --cache-dir"):
        cache(tmp_path / "absent", *command)
    assert not (tmp_path / "absent").exists()


def test_a_beginning_that_two_artifacts_have_is_refused(tmp_path: Path, cached: Manifest) -> None:
    """Both are named."""
    one, other = "0" * 63 + "1", "0" * 63 + "2"
    for each in (one, other):
        cache(tmp_path, "pin", each)
    with pytest.raises(CommandError, match=f"beginning of {one} and of {other}"):
        cache(tmp_path, "unpin", "0" * 8)
    cache(tmp_path, "unpin", one)
    assert {cached.id, other} == {each["artifact_id"] for each in listed(tmp_path)}
