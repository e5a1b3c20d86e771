"""What a model's directory holds beside the model is never run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "models" / "stories-v1"
EVIL = "import pathlib; pathlib.Path(__file__).with_name('it-ran').touch()"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model beside which modules lie that are called as those that we import."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    for name in ("numpy", "json", "http", "torch", "services"):
        (folder / f"{name}.py").write_text(EVIL)
    return folder


def test_a_conversion_in_the_models_directory_runs_nothing_of_it(model: Path) -> None:
    """The converter is a process that `halogen convert` starts where it is called.

    Fault injection: leave -P out of `module_command`.
    """
    halogen = Path(sys.executable).with_name("halogen")
    command = [str(halogen), "convert", ".", "../artifact"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, cwd=model, env=environment, capture_output=True, text=True, check=False)
    assert (0, False) == (ended.returncode, (model / "it-ran").exists()), ended.stderr
    assert (model.parent / "artifact" / "manifest.json").is_file()


def test_every_process_of_ours_is_started_so() -> None:
    """Nobody writes the command anew."""
    services = Path(sys.modules["services"].__path__[0])
    written = [
        path.relative_to(services) for path in services.rglob("*.py") if '"-m"' in path.read_text("utf-8")
    ]
    assert [Path("common/own_python.py")] == written
