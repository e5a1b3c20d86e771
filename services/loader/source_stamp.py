"""Whether a source's weights are still those whose table was read: a converter reads them for minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.common.errors import CorruptData

_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".halogen"})

Stamp = tuple[
    tuple[str, int, int, int], ...
]  # name, inode, bytes and time of change of every file of weights


def stamp(source: Path) -> Stamp:
    """Of a file, or of the files of weights in a directory; empty where there is nothing."""
    files = [source] if source.is_file() else sorted(source.glob("*"))
    return tuple(_facts(path) for path in files if path.suffix in _SUFFIXES and path.is_file())


def _facts(path: Path) -> tuple[str, int, int, int]:
    found = path.stat()
    return path.name, found.st_ino, found.st_size, found.st_mtime_ns


def check_unchanged(source: Path, before: Stamp) -> None:
    """Compares with a stamp taken before the first byte was read.

    Raises:
        CorruptData: A file of weights was changed, added or taken away since.
    """
    changed = {facts[0] for facts in set(before) ^ set(stamp(source))}
    if changed:
        raise CorruptData(
            f"{min(changed)} changed while it was converted; convert it again when nobody writes to it",
            reason="SOURCE_CHANGED",
        )
