"""What cannot be sent is refused by name and bounds, before anything is."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from services.common.client import Client
from services.common.client_options import Options, checked
from services.common.errors import InvalidRequest

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_tokens", -1, "1 to 4294967295"),
        ("max_tokens", 0, "1 to 4294967295"),
        ("max_tokens", 99_999_999_999, "1 to 4294967295"),
        ("max_tokens", "many", "a whole number"),
        ("max_tokens", 1.5, "a whole number"),
        ("max_tokens", True, "a whole number"),
        ("top_k", -3, "0 to 4294967295"),
        ("seed", -1, "0 to 18446744073709551615"),
        ("seed", 10**23, "0 to 18446744073709551615"),
        ("temperature", "hot", "a number, 0 to 2"),
        ("temperature", float("nan"), "a number, 0 to 2"),
        ("temperature", 2.1, "a number, 0 to 2"),
        ("top_p", 0, "over 0 and at most 1"),
        ("timeout_s", -1, "seconds"),
        ("ignore_eos", 1, "True or False"),
        ("logprobs", 5, "True or False"),
        ("model", 7, "a text"),
        ("model", "\ud800", "Unicode"),
        ("stop", 7, "a list of texts"),
        ("stop", [7], "a text"),
        ("stop_token_ids", 7, "a list of token ids"),
        ("stop_token_ids", [-1], "a list of token ids"),
        ("stop_token_ids", "12", "a list of token ids"),
    ],
)
def test_an_option_that_cannot_be_sent_is_refused(name: str, value: Any, allowed: str) -> None:
    """The message names the option and what is allowed. Fault injection: `checked` leaves _ALLOWED out."""
    with pytest.raises(InvalidRequest, match=rf"^{name} .*{allowed}"):
        checked(cast("Options", {name: value}))


def test_what_can_be_sent_passes() -> None:
    """The bounds themselves, numpy's numbers, and None for the server's choice; one stop string is a list of one."""
    options = {
        "seed": 2**64 - 1,
        "top_k": np.int64(0),
        "temperature": np.float32(0),
        "max_tokens": 1,
        "top_p": 1,
    }
    more = {"model": None, "timeout_s": None, "stop": "."}
    assert options | {"stop": (".",)} == checked(cast("Options", options | more))


@pytest.mark.parametrize("prompt", [[-1], [2**32], ["a"], [True], 7, b"bytes", "\udc80"])
def test_a_prompt_that_cannot_be_sent_is_refused(prompt: Any) -> None:
    """Neither text nor token ids."""
    with pytest.raises(InvalidRequest, match=r"^prompt "):
        Client(NOBODY).generate(prompt)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        ["hi"],
        "hi",
        [{"role": "user", "content": None}],
        [{"role": "\udc80", "content": ""}],
    ],
)
def test_messages_that_cannot_be_sent_are_refused(messages: Any) -> None:
    """A role and a content, both texts."""
    with pytest.raises(InvalidRequest, match=r"^(messages|role|content) "):
        Client(NOBODY).chat(messages)
