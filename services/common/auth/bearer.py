"""A bearer token in a call's metadata (RFC 6750)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Metadata = tuple[tuple[str, str | bytes], ...]

_KEY: Final = "authorization"
_SCHEME: Final = "Bearer"


def shown(token: str) -> Metadata:
    """The metadata that shows the token; none for an empty one."""
    return ((_KEY, f"{_SCHEME} {token}"),) if token else ()


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token that the metadata shows; empty where it shows none."""
    for key, value in metadata:
        if key == _KEY and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == _SCHEME.lower() else ""
    return ""
