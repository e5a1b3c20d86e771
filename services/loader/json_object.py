"""JSON of a source: nothing in it is said twice, since readers differ in which of the two they take."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from services.common.errors import CorruptData


def decode(text: bytes) -> Any:
    """The value; raises ValueError where it is not JSON, or an object has a key twice."""
    return json.loads(text, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key!r:.80} is there twice")
    return value


def parse_object(name: str, content: bytes) -> dict[str, Any]:
    """The JSON object in a file; raises CorruptData where there is none."""
    try:
        value = decode(content)
    except (ValueError, RecursionError) as fault:
        raise CorruptData(f"{name}: not JSON ({fault}); fetch it again") from None
    if not isinstance(value, dict):
        raise CorruptData(f"{name}: not a JSON object; fetch it again")
    return value
