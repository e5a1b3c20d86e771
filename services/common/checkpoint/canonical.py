"""Canonical JSON: one text for one value, so that its sha256 names the value.

Keys sorted, no spaces, ASCII only, no NaN; what is read must already have exactly this form.
"""

from __future__ import annotations

import json
from typing import Any, Final

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii")


def decode(text: bytes) -> Any:
    """Reads canonical JSON.

    Raises:
        ValueError: It is not JSON, or not the canonical text of its value (which also catches repeated keys).
    """
    try:
        value = json.loads(text.decode("ascii"))
        is_canonical = encode(value) == text
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not is_canonical:
        raise ValueError("not in canonical form")
    return value
