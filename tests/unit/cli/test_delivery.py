"""Artifacts on their way into the store: what is given is looked at, and what is used is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.console import CommandError
from services.cli.delivery import deliver
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.errors import CorruptData
from tests.signing import signed_by
from tests.tiny_checkpoints import make_tiny_artifact


def test_what_is_in_the_store_is_said_to_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the second time: the files given are not the ones that are served."""
    source, manifest = make_tiny_artifact(tmp_path)
    store = ArtifactStore(tmp_path / "store")
    assert manifest == deliver(source, store, replace=False).manifest
    assert "" == capsys.readouterr().err
    assert manifest == deliver(source, store, replace=False).manifest
    assert "is already in the store, whose files are used" in capsys.readouterr().err


def test_files_given_are_looked_at_also_when_the_store_has_them(tmp_path: Path) -> None:
    """Fault injection: `deliver` asks the store first."""
    source, _ = make_tiny_artifact(tmp_path)
    store = ArtifactStore(tmp_path / "store")
    deliver(source, store, replace=False)
    config = (source / "config.json").read_text()
    (source / "config.json").write_text(config.replace(" ", "\t", 1))
    with pytest.raises(CorruptData, match=r"config\.json does not match the manifest"):
        deliver(source, store, replace=False)


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The line names the store and the remedy."""
    source, _ = make_tiny_artifact(tmp_path)
    for replace in (False, True):
        with pytest.raises(CommandError, match=r"/proc/nope cannot be written.*--store"):
            deliver(source, ArtifactStore(Path("/proc/nope")), replace=replace)


def test_an_unsigned_copy_of_what_is_signed_in_the_store_is_signed(tmp_path: Path) -> None:
    """Signatures are of the id, wherever they lie. Fault injection: `deliver` returns what it was given."""
    source, manifest = make_tiny_artifact(tmp_path)
    store = ArtifactStore(tmp_path / "store")
    deliver(source, store, replace=False).write_signatures(signed_by(manifest.id, 1))
    assert signed_by(manifest.id, 1) == deliver(source, store, replace=False).signatures
