"""What the commands say to one who has just begun: one line, and what to do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halogen.v1 import control_pb2 as pb
from services.cli import ask, publish
from services.cli import status as status_command
from services.cli.console import CommandError
from services.cli.main import app
from services.common.checkpoint.artifact_store import read_manifest
from tests.tiny_checkpoints import make_tiny_artifact, write_tiny_checkpoint

README = Path(__file__).parents[3] / "README.md"


def test_the_readmes_python_is_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every snippet can be saved and run; the one that converts does."""
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    asking, converting = (compile(snippet, "README.md", "exec") for snippet in snippets)
    assert "asyncio" in asking.co_names
    write_tiny_checkpoint(tmp_path / "path/to/model")
    monkeypatch.chdir(tmp_path)
    exec(converting, {"__name__": "__main__"})
    assert read_manifest(tmp_path / "artifacts/my-model").id == capsys.readouterr().out.splitlines()[-1]


def test_convert_tells_scripts_what_it_made(tmp_path: Path) -> None:
    """The id and where it lies."""
    source = write_tiny_checkpoint(tmp_path / "source")
    made = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "artifact"), "--json"])
    _, manifest = make_tiny_artifact(tmp_path / "same")
    assert {"artifact_id": manifest.id, "directory": str(tmp_path / "artifact")} == json.loads(made.stdout)


def test_an_out_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A file where a folder should be: named, with the remedy."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "file/out")])
    assert isinstance(result.exception, CommandError)
    assert "file is a file, so nothing can lie in it; give another OUT" == str(result.exception)


def test_a_hugging_face_directory_is_not_its_own_artifact(tmp_path: Path) -> None:
    """The advice can be followed: convert refuses to write onto its source."""
    source = write_tiny_checkpoint(tmp_path / "source")
    with pytest.raises(CommandError, match=rf"halogen convert {source} {source}-artifact$"):
        publish.check_artifact(source)
    with pytest.raises(CommandError, match=r"halogen convert SOURCE OUT$"):
        publish.check_artifact(tmp_path)


def test_an_empty_question_is_not_asked() -> None:
    """One line, before anybody is asked."""
    with pytest.raises(CommandError, match="the question is empty"):
        ask.user(" ")


def test_a_status_cuts_no_name_off(capsys: pytest.CaptureFixture[str]) -> None:
    """Eighty columns are few for eight: what does not fit goes on below."""
    name = "a-model-with-a-name-as-long-as-they-often-are-0.5b-instruct"
    status = pb.Status(cohorts=[pb.CohortStatus(model=name, cohort="stable", who="somebody", why="because")])
    status_command.show(status, as_json=False)
    said = capsys.readouterr().out
    assert "…" not in said
    column = "".join(line.split("│")[1].strip() for line in said.splitlines() if line.startswith("│"))
    assert name == column


def test_a_status_says_how_a_loader_reads(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside where weights lie: both with what would be better."""
    loader = pb.ProcessStatus(
        role="loader", placement="tmpfs, huge pages", reading="buffered, no direct reads"
    )
    status_command.show(pb.Status(processes=[loader]), as_json=False)
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "reads: buffered, no direct reads" in said
    assert "tmpfs, huge pages" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_out_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    """The folder is named, with the remedy."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (tmp_path / "closed").mkdir(mode=0o500)
    result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "closed/out")])
    assert isinstance(result.exception, CommandError)
    assert "out cannot be made in closed (not writable); give an OUT that you may write" == str(
        result.exception
    )
