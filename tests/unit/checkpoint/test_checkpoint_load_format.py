"""What a model path holds, and whether it is what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.checkpoint.load_format import LoadFormat, check_format
from services.common.errors import InvalidRequest, NotFound

HELD = {
    LoadFormat.V2: ["manifest.json", "model.halogen", "config.json"],
    LoadFormat.SAFETENSORS: ["config.json", "model.safetensors", "pytorch_model.bin"],
    LoadFormat.PT: ["config.json", "pytorch_model.bin"],
    LoadFormat.GGUF: ["model.Q4_0.gguf"],
}


def make(directory: Path, names: list[str]) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).touch()
    return directory


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("asked", LoadFormat)
def test_what_is_not_what_was_asked_for_is_refused(
    tmp_path: Path, held: LoadFormat, asked: LoadFormat
) -> None:
    """Naming both, and the command that converts; auto takes any."""
    path = make(tmp_path / "model", HELD[held])
    if asked in {LoadFormat.AUTO, held}:
        assert held is check_format(path, asked)
        return
    remedy = "halogen convert .*/model OUT" if asked is LoadFormat.V2 else f"give {held} or auto"
    with pytest.raises(InvalidRequest, match=rf"holds a model in {held}, .* asks for {asked}; .*{remedy}"):
        check_format(path, asked)


def test_a_single_gguf_file_is_a_model(tmp_path: Path) -> None:
    """Other single files are not."""
    path = make(tmp_path / "d", ["m.gguf", "m.safetensors"])
    assert LoadFormat.GGUF is check_format(path / "m.gguf", LoadFormat.AUTO)
    with pytest.raises(InvalidRequest, match="holds no model"):
        check_format(path / "m.safetensors", LoadFormat.AUTO)


@pytest.mark.parametrize("names", [[], ["config.json"], ["model.halogen"], ["manifest.json"]])
def test_what_holds_no_model_is_refused(tmp_path: Path, names: list[str]) -> None:
    """Half an artifact is none."""
    with pytest.raises(InvalidRequest, match="give a Hugging Face directory"):
        check_format(make(tmp_path / "d", names), LoadFormat.AUTO)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """By its path, which is the caller's own."""
    with pytest.raises(NotFound, match="absent"):
        check_format(tmp_path / "absent", LoadFormat.V2)
