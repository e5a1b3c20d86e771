"""Where a user's programs keep what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """By the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "halogen"
