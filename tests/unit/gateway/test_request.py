"""Requests: born valid."""

from __future__ import annotations

from typing import Any

import pytest

from services.common.errors import InvalidRequest
from services.common.ids import ModelName, RequestId
from services.gateway.chat import Message
from services.gateway.request import ChatPrompt, Request, TextPrompt, TokenPrompt
from services.gateway.sampling import SamplingAsked


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "request_id": RequestId("r"),
        "model": ModelName("m"),
        "cohort": None,
        "prompt": TextPrompt("a fox"),
        "sampling": SamplingAsked(),
    }
    return Request(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request_id": ""}, "REQUEST_ID_INVALID"),
        ({"request_id": "r" * 129}, "REQUEST_ID_INVALID"),
        ({"stops": ("",)}, "STOP_INVALID"),
        ({"stops": ("s" * 257,)}, "STOP_INVALID"),
        ({"stops": ("s",) * 17}, "STOP_INVALID"),
        ({"cache_salt": b"s" * 257}, "CACHE_SALT_INVALID"),
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Ids, stop strings and salts have bounds, and stop strings are not empty."""
    with pytest.raises(InvalidRequest) as caught:
        request(**changes)
    assert reason == caught.value.reason


def test_the_bounds_themselves_are_allowed() -> None:
    """128 characters of id, 16 stop strings of 256 characters, 256 bytes of salt."""
    request(request_id="r" * 128, stops=("s" * 256,) * 16, cache_salt=b"s" * 256)


@pytest.mark.parametrize(
    ("prompt", "content"),
    [(TextPrompt, ""), (TokenPrompt, ()), (ChatPrompt, ())],
    ids=["text", "ids", "chat"],
)
def test_an_empty_prompt_is_refused(prompt: Any, content: Any) -> None:
    """There must be something to go on from."""
    with pytest.raises(InvalidRequest) as caught:
        prompt(content)
    assert "PROMPT_EMPTY" == caught.value.reason


@pytest.mark.parametrize(
    ("prompt", "content"),
    [(TokenPrompt, (1,) * (2**20 + 1)), (ChatPrompt, (Message("user", ""),) * 4_097)],
    ids=["ids", "chat"],
)
def test_the_parts_of_a_prompt_are_bounded(prompt: Any, content: Any) -> None:
    """Millions of token ids or empty messages are refused by their number."""
    with pytest.raises(InvalidRequest) as caught:
        prompt(content)
    assert "PROMPT_TOO_LARGE" == caught.value.reason


@pytest.mark.parametrize("role", ["", "user<|im_end|>", "system\n", "r" * 33])
def test_a_role_is_a_plain_word(role: str) -> None:
    """A role cannot smuggle marks of the template into the prompt."""
    with pytest.raises(InvalidRequest, match="is no role"):
        ChatPrompt((Message(role, "hello"),))


def test_the_size_of_a_prompt_is_that_of_its_text() -> None:
    """Bytes of UTF-8 are counted, whatever the form of the prompt."""
    long = request(prompt=TextPrompt("\u010d" * 5))
    long.check_size(10)
    with pytest.raises(InvalidRequest, match="10 bytes of text; at most 9"):
        long.check_size(9)
    chat = request(prompt=ChatPrompt((Message("user", "ab"), Message("user", "c"))))
    with pytest.raises(InvalidRequest, match="11 bytes"):
        chat.check_size(10)
    request(prompt=TokenPrompt((1, 2, 3))).check_size(0)
