"""What kind of checkpoint a path holds, and who reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.errors import InvalidRequest, NotFound
from services.loader.artifact_source import read_artifact
from services.loader.gguf_source import read_gguf
from services.loader.hugging_face import read_hugging_face
from services.loader.raw_checkpoint import RawCheckpoint
from services.loader.source_file import is_there

_FILE_ADVICE: Final = {FileFormat.V2: "a v2 weight file; give its artifact directory"}


def read_source(path: Path) -> RawCheckpoint:
    """Reads everything but the tensors' bytes of an artifact, a GGUF file, or a Hugging Face directory.

    Raises:
        NotFound: There is nothing.
        InvalidRequest: It is something else, or a file is missing.
        Unsupported: This build cannot convert it.
        CorruptData: A file is not what its name says.
    """
    if not path.is_dir():
        return _read_file(path)
    if (path / MANIFEST_NAME).is_file():
        return read_artifact(path)
    if stray := sorted(path.glob("*.halogen")):
        raise InvalidRequest(
            f"{path.name}: {stray[0].name} without its {MANIFEST_NAME}; give a whole artifact directory",
            reason="WRONG_FORMAT",
        )
    gguf = sorted(path.glob("*.gguf"))
    if not gguf or any(path.glob("*.safetensors")) or any(path.glob("*.bin")):
        return read_hugging_face(path)
    if len(gguf) > 1:
        raise InvalidRequest(f"{path.name}: {len(gguf)} GGUF files; give one of them", reason="WRONG_FORMAT")
    return read_gguf(gguf[0])


def _read_file(path: Path) -> RawCheckpoint:
    if not is_there(path):
        raise NotFound(
            f"{path.name}: no such directory or file; give a Hugging Face directory, a GGUF file or an artifact"
        )
    with path.open("rb") as file:
        found = recognise(file.read(RECOGNISED_BYTES))
    if found is FileFormat.GGUF:
        return read_gguf(path)
    advice = _FILE_ADVICE.get(found, f"a file ({found}); give its directory")
    raise InvalidRequest(f"{path.name} is {advice}", reason="WRONG_FORMAT")
