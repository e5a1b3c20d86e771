"""What a model path holds, told from the names of its files, and whether it is what was asked for."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

from services.common.checkpoint.file_format import WEIGHTS_NAME
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.errors import InvalidRequest, NotFound


class LoadFormat(enum.StrEnum):
    """What `--load-format` may ask for."""

    AUTO = "auto"
    V2 = "v2"
    SAFETENSORS = "safetensors"
    PT = "pt"
    GGUF = "gguf"


_SUFFIXES: Final = {  # by preference: where several are there, they are the same weights
    ".safetensors": LoadFormat.SAFETENSORS,
    ".bin": LoadFormat.PT,
    ".pt": LoadFormat.PT,
    ".pth": LoadFormat.PT,
    ".gguf": LoadFormat.GGUF,
}


def check_format(path: Path, asked: LoadFormat) -> LoadFormat:
    """The format of a model path; never AUTO.

    Args:
        path: An artifact, a Hugging Face directory, or a GGUF file.
        asked: AUTO takes any.

    Raises:
        NotFound: There is nothing.
        InvalidRequest: It holds no model, or one of another format than was asked for.
    """
    if not path.exists():
        raise NotFound(f"{path}: no such directory or file")
    found = _format_of(path)
    if found is None:
        raise InvalidRequest(
            f"{path} holds no model; give a Hugging Face directory, a GGUF file or an artifact",
            reason="WRONG_FORMAT",
        )
    if asked in {LoadFormat.AUTO, found}:
        return found
    remedy = f"convert it: halogen convert {path} OUT" if asked is LoadFormat.V2 else f"give {found} or auto"
    raise InvalidRequest(
        f"{path} holds a model in {found}, and --load-format asks for {asked}; {remedy}",
        reason="WRONG_FORMAT",
    )


def _format_of(path: Path) -> LoadFormat | None:
    if path.is_file():
        return LoadFormat.GGUF if path.suffix == ".gguf" else None
    names = [file.name for file in path.iterdir()]
    if MANIFEST_NAME in names and WEIGHTS_NAME in names:
        return LoadFormat.V2
    suffixes = {Path(name).suffix for name in names}
    return next((found for suffix, found in _SUFFIXES.items() if suffix in suffixes), None)
