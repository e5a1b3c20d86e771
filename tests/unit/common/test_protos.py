"""The committed stubs are what the pinned compiler makes of the protos."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).parents[3] / "protos"


def test_regenerating_changes_no_byte(tmp_path: Path) -> None:
    """Turns red when: a proto changes without `make protos`."""
    subprocess.run([sys.executable, PROTOS / "generate.py", tmp_path], check=True)
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "halogen" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (PROTOS / "halogen" / "v1").glob("*_pb2*")}
    assert committed == fresh
