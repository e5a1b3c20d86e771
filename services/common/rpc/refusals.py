"""The callers that are not let in: all counted, and some of them told in the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from services.common.auth.reasons import REFUSALS

QUIET_S: Final = 10.0

log = structlog.get_logger()


class Refusals:
    """Counts refusals by their reason; of each reason the log has one in `QUIET_S` at most, however many there are.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts = dict.fromkeys(sorted(REFUSALS), 0)
        self._quiet_until: dict[str, float] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """How many there were, by reason; every reason is there."""
        return self._counts

    def note(self, reason: str, method: str, peer: str) -> None:
        """One more.

        Args:
            reason: One of `REFUSALS`.
            method: ``/package.Service/Method`` that was called.
            peer: Where from, as gRPC says it.
        """
        self._counts[reason] += 1
        now = self._now()
        if now >= self._quiet_until.get(reason, now):
            self._quiet_until[reason] = now + QUIET_S
            log.warning("caller_refused", reason=reason, method=method, peer=peer, total=self._counts[reason])
