"""How long to wait so that no more than so many bytes a second are taken; time comes in as an argument."""

from __future__ import annotations


class TokenBucket:
    """Bytes that may be taken, growing at a rate; what is taken beyond them is waited for.

    Args:
        bytes_per_s: The rate, above 0; may be set to another, for whoever takes from then on.
        burst_bytes: What may be taken at once after a rest, from 0.
        now_s: Monotonic seconds.
    """

    def __init__(self, bytes_per_s: float, burst_bytes: float, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._left_bytes = burst_bytes  # below 0 is promised to those who wait
        self._at_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Takes so many bytes; returns the seconds to wait before they are used, in order of asking."""
        grown = self._left_bytes + (now_s - self._at_s) * self.bytes_per_s
        self._at_s = now_s
        self._left_bytes = min(self._burst_bytes, grown) - size_bytes
        return max(0.0, -self._left_bytes / self.bytes_per_s)
