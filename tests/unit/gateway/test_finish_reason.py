"""How requests end, in one word."""

from __future__ import annotations

import asyncio

import pytest

from services.common.errors import (
    Cancelled,
    CorruptData,
    DeadlinePassed,
    InternalError,
    Overloaded,
    Unavailable,
)
from services.common.ids import RequestId
from services.gateway import finish_reason
from services.gateway.answer import Answer


@pytest.mark.parametrize(
    ("failure", "begun", "in_time", "expected"),
    [
        (Overloaded("full"), False, True, "rejected"),
        (Unavailable("nobody"), False, True, "rejected"),
        (Overloaded("full"), True, True, "error"),
        (Overloaded("slow", reason="SLOW_READER"), True, True, "slow_reader"),
        (InternalError("broken"), False, True, "error"),
        (CorruptData("broken"), False, True, "error"),
        (RuntimeError("bug"), False, False, "error"),
        (DeadlinePassed("late"), True, True, "deadline"),
        (Cancelled("left"), True, True, "cancelled"),
        (asyncio.CancelledError(), True, True, "cancelled"),
        (asyncio.CancelledError(), True, False, "deadline"),
        (GeneratorExit(), False, True, "cancelled"),
    ],
)
def test_every_ending_has_a_word(
    failure: BaseException, *, begun: bool, in_time: bool, expected: str
) -> None:
    """What came before the first token is a rejection unless the fault is ours; at a deadline gRPC cancels."""
    answer = Answer(RequestId("r"), now_s=0.0)
    answer.begun = begun
    assert expected == finish_reason.of(answer, failure, in_time=in_time)
