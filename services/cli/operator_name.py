"""Who it is that orders something, where the command line does not say."""

from __future__ import annotations

import getpass
import os


def operator_name() -> str:
    """The user's name; their number where nobody has named them, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid-{os.getuid()}"
