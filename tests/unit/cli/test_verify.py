"""`halogen verify`: three checks, three lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import trial, verify
from services.cli.console import CommandError
from services.cli.main import app
from services.cli.trial import Trial
from services.common.checkpoint.dtype import DType
from tests.tiny_checkpoints import STORIES, make_tiny_artifact, write_tiny_checkpoint


def said(*tokens: int, margins: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Trial:
    return Trial("transformers", tokens, margins, 2.0)


@pytest.mark.parametrize(
    ("ours", "equal", "is_faithful"),
    [((4, 5, 6), 3, True), ((4, 5, 7), 2, True), ((4, 7, 6), 1, False), ((7, 5, 6), 0, False)],
)
def test_tokens_may_differ_from_a_near_tie_on(ours: tuple[int, ...], equal: int, is_faithful: bool) -> None:
    """Where the source was sure, they may not; here it is not sure of the last one."""
    theirs = said(4, 5, 6, margins=(1.0, 1.0, 0.1))
    assert equal == trial.equal_tokens(theirs, said(*ours))
    assert is_faithful is trial.is_faithful(theirs, said(*ours), DType.BF16)


def test_a_conversion_is_verified_end_to_end(tmp_path: Path) -> None:
    """Values, tokens and starts of a real model, each side in a process of its own."""
    artifact = tmp_path / "artifact"
    assert 0 == CliRunner().invoke(app, ["convert", str(STORIES), str(artifact)]).exit_code
    result = CliRunner().invoke(app, ["verify", str(STORIES), str(artifact)])
    tensors, prompt, starts = result.stdout.splitlines()
    assert "tensors  38 tensors and 3 files equal" in tensors
    assert "prompt   16 of 16 tokens equal those of transformers" == prompt
    assert starts.startswith("starts   first token after ")


def test_what_differs_ends_it(tmp_path: Path) -> None:
    """Before anybody is asked, in the loader's own line."""
    artifact, _ = make_tiny_artifact(tmp_path, seed=1)
    other = write_tiny_checkpoint(tmp_path / "other", seed=2)
    result = CliRunner().invoke(app, ["verify", str(other), str(artifact)])
    assert isinstance(result.exception, CommandError)
    assert str(result.exception).startswith("validation failed: tensor model.embed_tokens.weight")


def artifact_says(monkeypatch: pytest.MonkeyPatch, *tokens: int) -> None:
    monkeypatch.setattr(trial, "try_artifact", lambda *_: said(*tokens))


def test_another_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token, who was sure of it, and by how much. Fault injection: `_tell` asks for no faithfulness."""
    artifact, _ = make_tiny_artifact(tmp_path)
    artifact_says(monkeypatch, 4, 7, 6)
    monkeypatch.setattr(trial, "try_source", lambda *_: said(4, 5, 6))
    with pytest.raises(CommandError, match=r"token 1 .* transformers, which was sure of it \(by 1\.000\)"):
        verify.verify(tmp_path / "source-0", artifact, "Once")


def test_without_transformers_it_says_what_it_did_not_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how to have it compared."""

    def missing(*_: object) -> Trial:
        raise trial.NotInstalledError("pip install transformers")

    artifact, _ = make_tiny_artifact(tmp_path)
    artifact_says(monkeypatch, 4, 5, 6)
    monkeypatch.setattr(trial, "try_source", missing)
    verify.verify(tmp_path / "source-0", artifact, "Once")
    assert (
        "prompt   not compared, since the source cannot be run here: pip install transformers"
        in capsys.readouterr().out
    )
