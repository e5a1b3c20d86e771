"""What a failed call to another process means to a request."""

from __future__ import annotations

import grpc

from services.common.errors import Cancelled, HalogenError, Unavailable
from services.common.rpc.status import from_rpc_error


def peer_failure(failure: grpc.aio.AioRpcError) -> HalogenError:
    """The error that the peer's status stands for.

    A peer that cancels a call which its caller has not cancelled is ending: to the caller it is unavailable.
    """
    error = from_rpc_error(failure)
    if isinstance(error, Cancelled):
        return Unavailable("the process that was asked is ending; try again", retry_after_s=1.0)
    return error
