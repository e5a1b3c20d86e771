"""A prompt tried on an artifact without a system, and on its source by transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from services.engine import reference_trial, trial
from services.engine.kernels.portable import PortableKernels
from services.loader.conversion import convert
from tests.unit.engine.decoding import Decoding
from tests.unit.loader.gguf_files import random_values, write_gguf

PROMPT = [1, 17, 300, 5]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets for its whole process stays as it is here."""
    monkeypatch.setattr(trial, "configure_logs", lambda *_: None)
    monkeypatch.setattr(trial, "usable_cores", lambda: 1)


def test_a_trial_is_the_engines_greedy_answer(artifacts: dict[str, Path]) -> None:
    """Token for token, with the distance of the two largest logits."""
    expected = Decoding(artifacts["wide_heads"], PortableKernels(), "auto").alone([PROMPT], 8)[0]
    found = list(trial.continuation(artifacts["wide_heads"], PROMPT, 8))
    assert expected.ids == [choice.token for choice in found]
    top = [sorted(row)[-2:] for row in expected.logits]
    assert [float(b - a) for a, b in top] == pytest.approx([choice.margin for choice in found], abs=1e-4)


def choices(said: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_both_sides_print_the_same_tokens(
    artifacts: dict[str, Path], checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON line for each token, as it is chosen."""
    arguments = [*map(str, PROMPT), "--tokens", "6"]
    assert 0 == trial.main([str(artifacts["wide_heads"]), *arguments])
    ours = choices(capsys.readouterr().out)
    assert 0 == reference_trial.main([str(checkpoints["wide_heads"]), *arguments, "--dtype", "fp32"])
    theirs = choices(capsys.readouterr().out)
    assert [choice["token"] for choice in theirs] == [choice["token"] for choice in ours]
    assert [c["margin"] for c in theirs] == pytest.approx([c["margin"] for c in ours], abs=1e-3)


def test_what_is_no_artifact_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with status 1."""
    assert 1 == trial.main([str(tmp_path), "1"])
    assert "not an artifact" in capsys.readouterr().err


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a status of its own, so that the caller can go on without it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "m.gguf").touch()
    assert 3 == reference_trial.main([str(tmp_path), "1", "--dtype", "fp32"])
    assert 3 == reference_trial.main([str(tmp_path / "m.gguf"), "1", "--dtype", "fp32"])
    assert ["transformers", "transformers accelerate"] == capsys.readouterr().err.splitlines()


def test_a_gguf_file_is_answered_from(tmp_path: Path) -> None:
    """By transformers; our engine says the same from what is made of the file.

    Fault injection: turns red without the package accelerate, which transformers wants for such files.
    """
    source = write_gguf(tmp_path / "m.gguf", random_values(), kinds={})
    convert(source, tmp_path / "artifact")
    theirs = [choice["token"] for choice in reference_trial.continuation(source, torch.float32, PROMPT, 6)]
    assert theirs == [choice.token for choice in trial.continuation(tmp_path / "artifact", PROMPT, 6)]
