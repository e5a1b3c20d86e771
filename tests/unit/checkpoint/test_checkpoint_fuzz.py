"""The header reader under a fuzzer: whatever the bytes are, a header, one of our errors, or a bug."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from services.common.checkpoint.header import PREAMBLE, Header
from tests.unit.checkpoint.fuzz_target import change_blindly, seal, target
from tests.unit.checkpoint.golden import FOLDER

SECONDS: Final = os.environ.get("HALOGEN_FUZZ_S", "30")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The golden headers, whole, and as their JSON alone."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for path in FOLDER.glob("*.halogen"):
        header = Header.decode(path.read_bytes())
        (folder / path.stem).write_bytes(header.encode())
        length = int.from_bytes(path.read_bytes()[16:24], "little")
        (folder / f"{path.stem}-json").write_bytes(path.read_bytes()[PREAMBLE.size :][:length])
    return folder


@pytest.mark.timeout(int(SECONDS) + 120)
def test_no_bytes_crash_the_header_reader(corpus: Path) -> None:
    """For some seconds, guided by the code that is reached; HALOGEN_FUZZ_S makes it longer.

    Fault injection: take an entry's shape without looking at what its sizes are.
    """
    command = [sys.executable, "-m", "tests.unit.checkpoint.fuzz_header", str(corpus), SECONDS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert 0 == ended.returncode, ended.stderr[-2000:]
    runs = re.search(r"Done (\d+) runs", ended.stderr)
    assert runs is not None
    print(f"fuzzed: {runs[1]} inputs in {SECONDS} s")
    assert int(runs[1]) > 1000


def test_without_a_guide_changes_are_made_all_the_same(corpus: Path) -> None:
    """Where atheris has no build, the same target is fed with random changes."""
    contents = [path.read_bytes() for path in sorted(corpus.iterdir())]
    assert change_blindly(contents, 0.5) > 10
    for content in contents:
        target(content)
    assert Header.decode(seal((corpus / "plain-json").read_bytes())) == Header.decode(
        (corpus / "plain").read_bytes()
    )
