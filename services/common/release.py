"""Which release of halogen this is."""

from __future__ import annotations

import importlib.metadata


def release() -> str:
    """Its version, for example ``0.1.0``."""
    return importlib.metadata.version("halogen-serve")
