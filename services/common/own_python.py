"""How one program of ours starts another: by the same Python, whatever lies in the directory where it is called."""

from __future__ import annotations

import sys


def module_command(module: str) -> tuple[str, ...]:
    """``python -m module`` that imports nothing from the current directory, which may be a model's (-P)."""
    return (sys.executable, "-P", "-m", module)
