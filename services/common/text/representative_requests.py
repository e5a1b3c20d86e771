"""The file representative_requests.jsonl: what a model is typically asked, a request a line."""

from __future__ import annotations

import json
from typing import Any, Final

from services.common.errors import CorruptData

MAX_REQUESTS: Final = 1_000


def read_requests(content: bytes) -> tuple[dict[str, Any], ...]:
    """The requests: objects with a `prompt`, a text, or `messages`, a list; whatever else they say is kept.

    Raises:
        CorruptData: A line is something else, or there are none or too many.
    """
    lines = [line for line in content.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MAX_REQUESTS:
        raise CorruptData(
            f"representative_requests.jsonl has {len(lines)} requests; give 1 to {MAX_REQUESTS}"
        )
    return tuple(_read_request(line, number) for number, line in enumerate(lines, 1))


def _read_request(line: bytes, number: int) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if isinstance(request, dict) and (
        isinstance(request.get("prompt"), str) or isinstance(request.get("messages"), list)
    ):
        return request
    raise CorruptData(
        f'representative_requests.jsonl: request {number} is no object with a "prompt" or "messages"'
    )
