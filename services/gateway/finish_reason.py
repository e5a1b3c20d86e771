"""How accepted requests end: one of few words, for logs and metrics."""

from __future__ import annotations

from typing import Final

from services.common.errors import CorruptData, DeadlinePassed, HalogenError, InternalError
from services.gateway.answer import Answer

CANCELLED: Final = "cancelled"  # the caller left
DEADLINE: Final = "deadline"  # its time was over, whoever noticed
REJECTED: Final = "rejected"  # turned away before the first token
SLOW_READER: Final = "slow_reader"  # the caller did not read
ERROR: Final = "error"  # ours
_NAMED: Final = {"CANCELLED": CANCELLED, "SLOW_READER": SLOW_READER}


def of(answer: Answer, failure: BaseException | None, *, in_time: bool) -> str:
    """The answer's own finish reason (stop, length, aborted), or one of those above.

    Args:
        answer: As far as it has come.
        failure: What it ended with, if not with a last chunk.
        in_time: Whether the caller's deadline had not passed; at a deadline gRPC cancels the call.
    """
    match failure:
        case None:
            return answer.outcome
        case DeadlinePassed():
            return DEADLINE
        case HalogenError() if failure.reason in _NAMED:
            return _NAMED[failure.reason]
        case HalogenError() if not (answer.begun or isinstance(failure, InternalError | CorruptData)):
            return REJECTED
        case Exception():
            return ERROR
    return CANCELLED if in_time else DEADLINE
