"""When one request reached its stages. Pure: times come in, in monotonic seconds."""

from __future__ import annotations


class Timeline:
    """The stages of one request; a duration is None until its end was reached.

    Args:
        accepted_s: When it was taken in.

    Attributes:
        queue_s: Waited for tickets, over all attempts.
    """

    def __init__(self, accepted_s: float) -> None:
        self.queue_s: float | None = None
        self._accepted_s = accepted_s
        self._granted_s = accepted_s
        self._first_s: float | None = None
        self._last_s = accepted_s

    def wait(self, from_s: float, until_s: float) -> None:
        """It waited for a ticket, and got it or was turned down."""
        self.queue_s = (self.queue_s or 0.0) + until_s - from_s
        self._granted_s = until_s

    def receive(self, now_s: float) -> float | None:
        """Tokens have come; returns the seconds since the last ones, None for the first."""
        gap_s = None if self._first_s is None else now_s - self._last_s
        if self._first_s is None:
            self._first_s = now_s
        self._last_s = now_s
        return gap_s

    def elapsed_s(self, now_s: float) -> float:
        """Since it was taken in."""
        return now_s - self._accepted_s

    @property
    def first_token_s(self) -> float | None:
        """From acceptance to the first token."""
        return None if self._first_s is None else self._first_s - self._accepted_s

    @property
    def prefill_s(self) -> float | None:
        """From the ticket to the first token."""
        return None if self._first_s is None else self._first_s - self._granted_s

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last."""
        return None if self._first_s is None else self._last_s - self._first_s
