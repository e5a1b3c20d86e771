"""The file representative_requests.jsonl: what a model is typically asked, a request a line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from services.common.errors import CorruptData

FILE: Final = "representative_requests.jsonl"
MAX_REQUESTS: Final = 1_000
MAX_EXPECTED_TOKENS: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RepresentativeRequest:
    """A line; what else it says is for people.

    Attributes:
        number: Of the request in the file, from 1.
        prompt: A text; None where there are messages.
        messages: A conversation, each with role and content; none where there is a text.
        expected_token_ids: How the greedy answer must begin; empty where nothing is expected.
    """

    number: int
    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    expected_token_ids: tuple[int, ...] = ()


def read_requests(content: bytes) -> tuple[RepresentativeRequest, ...]:
    """The requests, in order.

    Raises:
        CorruptData: A line is something else, or there are none or too many.
    """
    lines = [line for line in content.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MAX_REQUESTS:
        raise CorruptData(f"{FILE} has {len(lines)} requests; give 1 to {MAX_REQUESTS}")
    return tuple(_read_request(line, number) for number, line in enumerate(lines, 1))


def _read_request(line: bytes, number: int) -> RepresentativeRequest:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not (
        isinstance(said.get("prompt"), str) or isinstance(said.get("messages"), list)
    ):
        _refuse(number, 'is no object with a "prompt" or "messages"')
    prompt = said.get("prompt")
    is_text = isinstance(prompt, str)
    return RepresentativeRequest(
        number=number,
        prompt=prompt if is_text else None,
        messages=() if is_text else _messages(said["messages"], number),
        expected_token_ids=_expected(said.get("expected_token_ids", []), number),
    )


def _messages(said: list[Any], number: int) -> tuple[Mapping[str, str], ...]:
    for message in said:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            _refuse(number, "has a message without a text role and content")
    return tuple({"role": message["role"], "content": message["content"]} for message in said)


def _expected(said: Any, number: int) -> tuple[int, ...]:
    ids = said if isinstance(said, list) else [said]
    is_sound = isinstance(said, list) and len(ids) <= MAX_EXPECTED_TOKENS
    if not is_sound or any(type(each) is not int or each < 0 for each in ids):
        _refuse(number, f"has expected_token_ids that are no list of at most {MAX_EXPECTED_TOKENS} token ids")
    return tuple(ids)


def _refuse(number: int, what: str) -> NoReturn:
    raise CorruptData(f"{FILE}: request {number} {what}")
