"""The YAML file of a process's settings, and names that are nearly those of settings."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from services.common.errors import InvalidRequest

_LIKENESS: Final = 0.8  # the least of difflib's that is taken for a slip; no two settings are as alike


def read_settings(path: Path, names: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """The file's settings, each by its name; an empty file has none.

    Args:
        path: The file.
        names: Of all settings that there are, with the names of those in it where one is a section.

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
    _check_names(path, content, names)
    for section, inner in names.items():
        if inner and section in content:
            if not isinstance(content[section], dict):
                raise InvalidRequest(
                    f"{path}: {section} is a section: give lines of the form `name: value` in it"
                )
            _check_names(path, content[section], inner, f" in {section}")
    return content


def _check_names(path: Path, given: Mapping[Any, Any], names: Collection[str], where: str = "") -> None:
    for name in given:
        if name not in names:
            near = nearest(str(name), names)
            advice = f"do you mean {near}?" if near else "see --help for those that there are"
            raise InvalidRequest(f"{path}: there is no setting {name!r}{where}; {advice}")


def nearest(name: str, names: Collection[str]) -> str | None:
    """The one of `names` that `name` may be a slip for."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_").lower(), names, 1, _LIKENESS)), None)
