"""What a failed call to another process means to a request."""

from __future__ import annotations

from typing import Final

import grpc

from services.common.errors import Cancelled, HalogenError, InternalError, Unavailable
from services.common.rpc.status import from_rpc_error

_RETRY_AFTER_S: Final = 1.0


def peer_failure(failure: grpc.aio.AioRpcError, peer: str) -> HalogenError:
    """The error that the peer's status stands for.

    A peer that cancels a call which its caller has not cancelled is ending: to the caller it is unavailable.
    The transport's own words name addresses of ours, so they stay in the chain of causes.

    Args:
        failure: Of the call.
        peer: Who was called, for the message.
    """
    error = from_rpc_error(failure)
    if isinstance(error, Cancelled):
        return Unavailable(f"{peer} is ending; try again", retry_after_s=_RETRY_AFTER_S)
    if error.reason != error.default_reason:  # the peer's own words
        return error
    if isinstance(error, Unavailable):
        return Unavailable(f"{peer} does not answer; try again", retry_after_s=_RETRY_AFTER_S)
    if isinstance(error, InternalError):
        return InternalError(f"{peer} failed in this call; its log has the details")
    return error
