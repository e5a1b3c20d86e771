"""How much of the cores a load takes from those who are served meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

RESTS: Final = 9  # times as long as it worked: beside requests a load has a tenth of one core


class Rest:
    """Taken between two pieces of work by the thread that loads; none while nobody is served.

    Its thread cannot run at idle priority instead: whenever it was kept from running while it has the interpreter's
    lock, all others of its process would wait.

    Args:
        is_busy: Whether requests are under way; asked by that thread.
        stop: Ends a rest early.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        stop: threading.Event,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_busy = is_busy
        self._stop = stop
        self._clock_s = clock_s
        self._since_s = clock_s()

    def take(self) -> None:
        """Rests, in proportion to what was done since the last one."""
        if self._is_busy():
            self._stop.wait(RESTS * (self._clock_s() - self._since_s))
        self._since_s = self._clock_s()
