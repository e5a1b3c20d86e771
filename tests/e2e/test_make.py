"""The Makefile's first step: an environment that is whole, whatever a killed attempt left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "-f", str(REPOSITORY / "Makefile"), "-C", str(folder), target]
    return subprocess.run(
        [*command, f"PYTHON={sys.executable}"], capture_output=True, text=True, check=False, env=os.environ
    )


def test_a_half_made_environment_is_made_again(tmp_path: Path) -> None:
    """Killed before pip was in it. Fault injection: the rule's target is .venv/bin/python again."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")], check=True)
    python = tmp_path / ".venv/bin/python"
    assert (
        0 != subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
    )
    made = make(tmp_path, ".venv/.made")
    assert 0 == made.returncode, made.stderr
    assert (
        0 == subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
    )


def test_down_without_an_installation_is_no_error(tmp_path: Path) -> None:
    """Also where only half of an environment is there."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    down = make(tmp_path, "down")
    assert (0, "nothing was ever started here") == (down.returncode, down.stdout.strip())
