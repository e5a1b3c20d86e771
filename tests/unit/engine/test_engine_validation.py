"""Bad input is refused by field and range before the engine sees it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from services.common.errors import InvalidRequest
from services.engine.validation import AskedRequest, validate

GOOD = AskedRequest(
    request_id="r",
    prompt=(1, 2, 3),
    temperature=0.5,
    top_k=5,
    top_p=0.9,
    seed=7,
    max_tokens=8,
    stop_token_ids=(0,),
)


def test_a_good_request_passes_as_it_is() -> None:
    """Values within their ranges, bounds included, are taken over."""
    request = validate(GOOD, vocab_size=512, max_context_tokens=11, deadline=5.0)
    assert ((1, 2, 3), 5.0) == (request.prompt, request.deadline)
    assert (0.5, 5, 0.9, 7, 8, {0}, False) == dataclasses.astuple(request.sampling)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", ""),
        ("request_id", "x" * 129),
        ("prompt", ()),
        ("prompt", (1, 512)),
        ("prompt", (2**32 - 1,)),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", None),
        ("top_k", 513),
        ("top_k", None),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("top_p", 1.01),
        ("top_p", None),
        ("seed", None),
        ("max_tokens", 0),
        ("max_tokens", None),
        ("stop_token_ids", (512,)),
        ("stop_token_ids", (1,) * 65),
        ("cache_salt", b"s" * 257),
        ("tenant", "t" * 65),
    ],
)
def test_a_bad_value_is_refused_by_its_field(field: str, value: object) -> None:
    """The message names the field and what is allowed; the metadata names it for programs."""
    changes: dict[str, Any] = {field: value}
    asked = dataclasses.replace(GOOD, **changes)
    with pytest.raises(InvalidRequest) as refused:
        validate(asked, vocab_size=512, max_context_tokens=1024)
    assert field in refused.value.metadata["field"]
    assert "allowed:" in refused.value.message


def test_an_answer_longer_than_the_context_is_refused() -> None:
    """Both numbers and the limit are in the message."""
    with pytest.raises(InvalidRequest, match="3 prompt tokens and max_tokens 8 exceed the context of 10"):
        validate(GOOD, vocab_size=512, max_context_tokens=10)
