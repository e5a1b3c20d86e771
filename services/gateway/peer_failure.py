"""What a failed call to another process means to a request."""

from __future__ import annotations

from typing import Final

import grpc

from services.common.errors import Cancelled, HalogenError, InternalError, Unavailable
from services.common.rpc.peer_error import from_peer
from services.common.rpc.status import UNREACHABLE

PEER_GONE: Final = "PEER_GONE"  # the reason where the peer had no say in it
_RETRY_AFTER_S: Final = 1.0


def peer_failure(failure: grpc.aio.AioRpcError, peer: str) -> HalogenError:
    """The error that the peer's status stands for.

    A peer that cancels a call which its caller has not cancelled is ending: to the caller it is unavailable.
    The transport's own words name addresses of ours, so they stay in the chain of causes.

    Args:
        failure: Of the call.
        peer: Who was called, for the message.
    """
    error = from_peer(failure, peer)
    if isinstance(error, Cancelled):
        return _gone(f"{peer} is ending; try again")
    if error.reason == UNREACHABLE:
        return _gone(f"{peer} does not answer; try again")
    if isinstance(error, InternalError) and error.reason == InternalError.default_reason:
        return InternalError(f"{peer} failed in this call; its log has the details")
    return error


def _gone(message: str) -> Unavailable:
    return Unavailable(message, reason=PEER_GONE, retry_after_s=_RETRY_AFTER_S)
