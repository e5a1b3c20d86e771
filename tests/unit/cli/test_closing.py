"""The last words of `up` can be followed as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli import closing


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our command in a checkout's .venv, from where one stands."""
    path = tmp_path / ".venv/bin/halogen"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    return path


def test_the_command_is_named_as_the_shell_finds_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name on PATH, else by its path; another halogen on PATH is not ours."""
    monkeypatch.setenv("PATH", str(installed.parent))
    assert "halogen" == closing.command(installed)
    other = tmp_path / "other/halogen"
    other.parent.mkdir()
    other.touch(mode=0o755)
    for path in (other.parent, tmp_path):
        monkeypatch.setenv("PATH", str(path))
        assert ".venv/bin/halogen" == closing.command(installed)
    monkeypatch.chdir(other.parent)
    assert str(installed) == closing.command(installed)


@pytest.mark.parametrize(
    ("build", "compiler", "words"),
    [
        ("halogen/0.1.0 cpu avx512_bf16 torch/2.13.0", False, ""),
        ("", False, ""),
        ("halogen/0.1.0 cpu portable torch/2.13.0", False, "apt-get install gcc"),
        ("halogen/0.1.0 cpu portable torch/2.13.0", True, "not_faster_because"),
    ],
)
def test_slow_kernels_are_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, compiler: bool, words: str
) -> None:
    """Only where they are used; without a compiler the remedy is one."""
    if compiler:
        (tmp_path / "cc").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    advice = closing.kernel_advice(build)
    assert (bool(words), True) == (bool(advice), words in advice)
