"""How fast weights may be read beside live traffic: by what time the cores had left lately. Pure."""

from __future__ import annotations

from typing import Final

LEAST_BYTES_PER_S: Final = (
    80_000_000  # about 2 % of a core, so that no load starves where no core is ever idle
)
IDLE_SHARE: Final = 0.25  # of the idle time is what a load may compute in
CORE_BYTES_PER_S: Final = 3_000_000_000  # that a core reads and digests
LOOK_S: Final = 0.1  # between two looks: the kernel counts in hundredths


class LiveRate:
    """A rate that follows the idle time.

    Args:
        most_bytes_per_s: What it never passes.
        now_s: Monotonic seconds.

    Attributes:
        bytes_per_s: The rate; the most until two looks have been taken.
    """

    def __init__(self, most_bytes_per_s: int, now_s: float) -> None:
        self.bytes_per_s: float = most_bytes_per_s
        self._most_bytes_per_s = most_bytes_per_s
        self._idle_s: float | None = None
        self._at_s = now_s - LOOK_S

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another look."""
        return now_s >= self._at_s + LOOK_S

    def look(self, idle_s: float, now_s: float) -> None:
        """Follows what was idle since the last look.

        Args:
            idle_s: Seconds that all cores together have been idle, from any beginning.
            now_s: Monotonic seconds, later than at the last look.
        """
        if self._idle_s is not None:
            idle_cores = (idle_s - self._idle_s) / (now_s - self._at_s)
            wanted = max(LEAST_BYTES_PER_S, idle_cores * IDLE_SHARE * CORE_BYTES_PER_S)
            self.bytes_per_s = min(wanted, self._most_bytes_per_s)
        self._idle_s, self._at_s = idle_s, now_s
