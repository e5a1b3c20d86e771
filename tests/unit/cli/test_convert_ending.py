"""`halogen convert` that is ended: the converter that it runs ends with it, and nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from services.cli.convert import _converter
from tests.sparse_checkpoint import GIGABYTE, write_sparse_checkpoint

HALOGEN: Final = ("-m", "services.cli", "convert")
LAUNCHER: Final = (  # reads nothing from its converter, which therefore notices no closed pipe
    "-c",
    """
import os, signal, subprocess, sys
command = [sys.executable, "-m", "services.loader.convert", *sys.argv[1:]]
subprocess.Popen([*command, "--progress", "none", "--parent", str(os.getpid())])
signal.pause()
""",
)


@contextlib.contextmanager
def converting(folder: Path, command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in the middle of a gigabyte, and a descriptor of the directory that its converter fills."""
    write_sparse_checkpoint(folder / "source", GIGABYTE)
    (folder / "source/optimizer.pt").write_bytes(b"state")
    command = [sys.executable, *command, str(folder / "source"), str(folder / "artifact")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            assert "dropped training state" in process.stderr.readline()  # which is said before the weights
            (work,) = folder.glob(".artifact.converting-*")
            descriptor = os.open(work, os.O_RDONLY)
            yield process, descriptor
            os.close(descriptor)
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("signals_as_in_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_asked_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Whoever asked the command gets a status that says so, once the converter is gone and its directory is.

    Fault injection: turns red when `_converter` opens no `ending_in_order`.
    """
    with converting(tmp_path, HALOGEN) as (process, _):
        process.send_signal(number)
        process.communicate()
        assert 128 + number == process.returncode
        assert ["source"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("command", [HALOGEN, LAUNCHER], ids=["halogen", "launcher"])
def test_a_converter_does_not_outlive_its_command(tmp_path: Path, command: Sequence[str]) -> None:
    """kill -9 of the command: the converter cleans up and ends, though nobody tells it.

    Fault injection: turns red with the launcher when `end_with_parent` does nothing.
    """
    with converting(tmp_path, command) as (process, directory):
        process.kill()
        fcntl.flock(directory, fcntl.LOCK_EX)  # which the converter holds for as long as it lives
        assert ["source"] == [path.name for path in tmp_path.iterdir()]


def test_a_converter_that_is_silent_is_called_off() -> None:
    """It may have nothing to say for minutes. Fault injection: hangs when `_call_off` does nothing."""
    silent = "import signal; print('begun', flush=True); signal.pause()"
    with _converter([sys.executable, "-c", silent]) as process:
        assert process.stdout
        process.stdout.readline()
    assert -signal.SIGTERM == process.returncode
