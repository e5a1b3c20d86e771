"""Refused callers are counted, and do not fill the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from services.common.auth.reasons import CREDENTIAL_MISSING, REFUSALS, TOKEN_UNKNOWN
from services.common.rpc.refusals import QUIET_S, Refusals


def test_the_log_has_one_refusal_of_a_reason_in_a_while() -> None:
    """All are counted; what is told has the number of all, so that none is lost.

    Fault injection: turns red when `note` logs each, or only the first of all.
    """
    now = 0.0
    refusals = Refusals(lambda: now)
    with capture_logs() as logs:
        for reason, later_s in (
            (CREDENTIAL_MISSING, 0.0),
            (CREDENTIAL_MISSING, QUIET_S / 2),
            (TOKEN_UNKNOWN, 0.0),
            (CREDENTIAL_MISSING, QUIET_S / 2),
        ):
            now += later_s
            refusals.note(reason, "/s/M", "ipv4:10.0.0.1:9")
    told = [(entry["reason"], entry["total"]) for entry in logs]
    assert [(CREDENTIAL_MISSING, 1), (TOKEN_UNKNOWN, 1), (CREDENTIAL_MISSING, 3)] == told
    assert {**dict.fromkeys(REFUSALS, 0), CREDENTIAL_MISSING: 3, TOKEN_UNKNOWN: 1} == refusals.counts
