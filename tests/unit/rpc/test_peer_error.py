"""A peer that does not let a process in."""

from __future__ import annotations

import grpc
from structlog.testing import capture_logs

from services.common.auth.reasons import ROLE_INSUFFICIENT
from services.common.errors import PermissionDenied
from services.common.rpc.peer_error import PEER_REFUSES, from_peer
from services.common.rpc.status import to_status


def test_a_refusal_is_logged_with_its_remedy() -> None:
    """The peer's own words, and what to change here; whoever waits is told that the peer is unavailable."""
    refusal = PermissionDenied("ReadFile needs role system", reason=ROLE_INSUFFICIENT)
    status = to_status(refusal)
    failure = grpc.aio.AioRpcError(
        status.code, grpc.aio.Metadata(), grpc.aio.Metadata(*status.trailing_metadata), status.details
    )
    with capture_logs() as events:
        error = from_peer(failure, "the loader")
    (event,) = events
    assert (PEER_REFUSES, "peer_refuses", "error") == (error.reason, event["event"], event["log_level"])
    assert "ReadFile needs role system" == event["error"]
    assert "--token-file" in event["remedy"]
    assert "role system" in event["remedy"]
