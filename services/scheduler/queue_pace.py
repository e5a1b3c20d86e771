"""How fast a line moves, and so how long it takes to get through it. Pure: time comes in."""

from __future__ import annotations

import collections
from typing import Final

_REMEMBERED: Final = 64
_ENOUGH: Final = 8  # departures that say how fast it goes


class QueuePace:
    """Watches who leaves a line for what they waited for.

    Args:
        now_ns: When the first one began to wait: what was before that says nothing.
    """

    def __init__(self, now_ns: int) -> None:
        self._left_ns: collections.deque[int] = collections.deque(maxlen=_REMEMBERED)
        self._since_ns = now_ns  # from when on the departures above are all there were

    def leave(self, now_ns: int) -> None:
        """One has got what it waited for."""
        if len(self._left_ns) == _REMEMBERED:
            self._since_ns = self._left_ns[0]
        self._left_ns.append(now_ns)

    def expected_ns(self, ahead: int, now_ns: int) -> int:
        """How long it takes until all `ahead` have left and one more can; 0 as long as too little has been seen.

        While nobody leaves it grows.
        """
        departures = len(self._left_ns)
        if departures < _ENOUGH:
            return 0
        return (ahead + 1) * (now_ns - self._since_ns) // departures
