"""Paths in manifests and indexes: they come from outside, and must stay below their directory on every file system."""

from __future__ import annotations

import re
from typing import Final

MAX_PATH_CHARS: Final = 255

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_DEVICES: Final = frozenset(  # names that mean a device on Windows, whatever follows the first dot
    {"con", "prn", "aux", "nul"} | {f"{port}{number}" for port in ("com", "lpt") for number in range(10)}
)


def check_path(path: str) -> None:
    """Raises ValueError unless `path` is relative, with `/` between plain ASCII names.

    A plain name is none of ``.`` and ``..``, ends in no dot, and is no device's.
    """
    if not path or len(path) > MAX_PATH_CHARS:
        raise ValueError(f"path {path[:80]!r} does not have 1 to {MAX_PATH_CHARS} characters")
    if path.startswith("/"):
        raise ValueError(f"path {path[:80]!r} is not relative")
    for part in path.split("/"):
        if not _is_plain(part):
            raise ValueError(f"path {path[:80]!r} has a part that is not a plain name: {part[:80]!r}")


def _is_plain(name: str) -> bool:
    return (
        _PLAIN_NAME.fullmatch(name) is not None
        and not name.endswith(".")
        and name.partition(".")[0].lower() not in _DEVICES
    )
