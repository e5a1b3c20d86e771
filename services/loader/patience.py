"""How often in a row a request may break off before the store counts as gone."""

from __future__ import annotations

from typing import Final

import structlog

from services.common.backoff import Backoff
from services.common.errors import Unavailable

WORTH_BYTES: Final = 64 << 10  # so many arrived: the store works after all

log = structlog.get_logger()


class BrokenOff(Exception):
    """A request to a store ended before all was there; another may go on from where it broke off."""


class Patience:
    """Counts failures without progress between them.

    Args:
        tries: That many failures in a row are too many.
        first_pause_s: After the first one; each further pause is twice as long, up to `most_pause_s`.
    """

    def __init__(self, tries: int, first_pause_s: float, most_pause_s: float) -> None:
        self._tries = tries
        self._backoff = Backoff(first_pause_s, most_pause_s)
        self._failures = 0
        self._arrived_bytes = 0

    def arrived(self, by_bytes: int) -> None:
        """So many bytes came."""
        self._arrived_bytes += by_bytes
        if self._failures and self._arrived_bytes >= WORTH_BYTES:
            self._failures = 0
            self._backoff.reset()

    async def after(self, failure: BrokenOff) -> None:
        """Pauses until the next try.

        Raises:
            Unavailable: It was one failure too many.
        """
        self._failures += 1
        self._arrived_bytes = 0
        log.warning(
            "store_request_broken_off",
            failure=str(failure),
            cause=repr(failure.__cause__),
            failures_in_a_row=self._failures,
        )
        if self._failures >= self._tries:
            raise Unavailable(
                f"the artifact store fails again and again ({failure}); see that it runs, and is what --store names",
                reason="STORE_UNREACHABLE",
                retry_after_s=1.0,
            ) from failure
        await self._backoff.pause()
