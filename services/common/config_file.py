"""The YAML file of a process's settings, and names that are nearly those of settings."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import yaml

from services.common.errors import InvalidRequest

_LIKENESS: Final = 0.8  # the least of difflib's that is taken for a slip; no two settings are as alike


def read_settings(path: Path, names: Collection[str]) -> dict[str, Any]:
    """The file's settings, each by its name; an empty file has none.

    Args:
        path: The file.
        names: Of all settings that there are.

    Raises:
        InvalidRequest: It is not YAML, no mapping, or has another name; the line names the file.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as fault:
        raise InvalidRequest(f"{path} cannot be read: {' '.join(str(fault).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path}: give settings as lines of the form `name: value`")
    for name in content:
        if name not in names:
            near = nearest(str(name), names)
            advice = f"do you mean {near}?" if near else "see --help for those that there are"
            raise InvalidRequest(f"{path}: there is no setting {name!r}; {advice}")
    return content


def nearest(name: str, names: Collection[str]) -> str | None:
    """The one of `names` that `name` may be a slip for."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_").lower(), names, 1, _LIKENESS)), None)
