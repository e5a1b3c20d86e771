"""The demo model: made when it is not there, and when what is there is of an older format."""

from __future__ import annotations

from pathlib import Path

from services.cli import demo
from services.common.checkpoint.header import Header
from services.loader.conversion import convert
from tests.tiny_checkpoints import write_tiny_checkpoint


def test_an_artifact_of_an_older_format_is_converted_anew(tmp_path: Path) -> None:
    """Without a download: the Hugging Face form is still there. What is readable is left alone.

    Fault injection: let `_is_readable` look at the manifest alone.
    """
    source = write_tiny_checkpoint(tmp_path / f"{demo.MODEL}-hf")
    convert(source, tmp_path / demo.MODEL)
    weights = tmp_path / demo.MODEL / "model.halogen"
    sound = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(sound[:12] + bytes(4) + sound[16:])
    model = demo.ensure(tmp_path)
    assert weights == model.artifact / "model.halogen"
    assert Header.decode(sound) == Header.decode(weights.read_bytes())
    made = weights.stat().st_ino
    assert (model, made) == (demo.ensure(tmp_path), weights.stat().st_ino)
