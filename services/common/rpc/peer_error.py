"""What the status of a process of ours means to the one that called it."""

from __future__ import annotations

from typing import Final

import grpc
import structlog

from services.common.auth.reasons import REFUSALS
from services.common.errors import HalogenError, Unavailable
from services.common.rpc.status import from_rpc_error

PEER_REFUSES: Final = "PEER_REFUSES"
_RETRY_AFTER_S: Final = 1.0

log = structlog.get_logger()


def from_peer(failure: grpc.aio.AioRpcError, peer: str) -> HalogenError:
    """The error that the peer's status stands for.

    A peer that does not let this process in is unavailable to whoever waits: the fault is in our settings, and may be
    gone as soon as a token is replaced. The log has the peer's own words.

    Args:
        failure: Of the call.
        peer: Who was called, for the message.
    """
    error = from_rpc_error(failure)
    if error.reason not in REFUSALS:
        return error
    remedy = "give this process a --token-file (or a certificate) of role system that the peer's callers file names"
    log.error("peer_refuses", peer=peer, reason=error.reason, error=error.message, remedy=remedy)
    return Unavailable(
        f"{peer} does not let this process in; operators: look at its --token-file, which must be of role system",
        reason=PEER_REFUSES,
        retry_after_s=_RETRY_AFTER_S,
    )
