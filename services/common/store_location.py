"""How the place of a store of artifacts is told: a directory, a file:// URL, or an http(s):// URL."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

SCHEMES: Final = frozenset({"http", "https"})


def is_http(location: str) -> bool:
    """Whether a store lies there that is read over HTTP, rather than a directory."""
    return urlsplit(location).scheme in SCHEMES
