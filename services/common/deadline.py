"""The caller's deadline, on its way through the hops."""

from __future__ import annotations

import time
from typing import NamedTuple, Self

from services.common.errors import DeadlinePassed


class Deadline(NamedTuple):
    """A point in monotonic time, in seconds; None is never."""

    at_s: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        return cls(None if seconds is None else time.monotonic() + seconds)

    def remaining_s(self) -> float | None:
        """The time that the next hop may take.

        Raises:
            DeadlinePassed: There is none left.
        """
        if self.at_s is None:
            return None
        left_s = self.at_s - time.monotonic()
        if left_s <= 0:
            raise DeadlinePassed("the request's deadline has passed; give it more time")
        return left_s

    def allows(self, pause_s: float) -> bool:
        """Whether any time is left after a pause of that length."""
        return self.at_s is None or time.monotonic() + pause_s < self.at_s
