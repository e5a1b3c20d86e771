"""How fast weights are read: as fast as they come, or gently while engines of this host serve."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from services.common.checkpoint.digest import BLOCK_BYTES
from services.loader.cpu_class import turn_idle
from services.loader.io_priority import IoClass, set_io_class
from services.loader.token_bucket import TokenBucket

SMALL_LOAD_BYTES: Final = 32 << 20  # over before anybody notices: about 10 ms of one core


class Pace(Protocol):
    """Asked by every reading thread before every block."""

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Returns when so many bytes may be read, or once `stop` is set."""
        ...

    def stand_back(self, load_bytes: int) -> None:
        """Puts the calling thread behind the work of those who serve, if anybody does; it may stay there for good.

        Args:
            load_bytes: All that is loaded.
        """
        ...

    @property
    def stands_back(self) -> bool:
        """Whether threads are to do that now."""
        ...

    @property
    def manners(self) -> str:
        """How reads hold back now, for people; empty when they do not."""
        ...


class FullSpeed:
    """Reads never wait."""

    manners = ""
    stands_back = False

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Returns at once."""

    def stand_back(self, load_bytes: int) -> None:
        """Nobody is served."""


FULL_SPEED: Final = FullSpeed()


class GentlePace:
    """Full speed while nobody is served; beside live traffic idle priority, of CPU and I/O, and a bound on the bandwidth.

    Args:
        is_live: Whether an engine of this host serves; called from the reading threads.
        bytes_per_s: The bound; 0 is none.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        is_live: Callable[[], bool],
        bytes_per_s: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_live = is_live
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._bucket = TokenBucket(max(1, bytes_per_s), BLOCK_BYTES, clock_s())
        self._taking = threading.Lock()
        self._thread = threading.local()

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Waits if engines serve, as `Pace.before` says."""
        if self._is_live() and self._bytes_per_s:
            with self._taking:
                wait_s = self._bucket.take(size_bytes, self._clock_s())
            stop.wait(wait_s)

    def stand_back(self, load_bytes: int) -> None:
        """As `Pace.stand_back` says; of the two priorities, only that of I/O follows the traffic back."""
        is_live = self._is_live() and load_bytes > SMALL_LOAD_BYTES
        self._set_class(IoClass.IDLE if is_live else IoClass.NORMAL)
        if is_live and not getattr(self._thread, "is_idle", False):
            self._thread.is_idle = True
            turn_idle()

    @property
    def stands_back(self) -> bool:
        return self._is_live()

    @property
    def manners(self) -> str:
        if not self._is_live():
            return ""
        bound = f", at most {self._bytes_per_s} bytes/s" if self._bytes_per_s else ""
        return f"beside live traffic: idle CPU and I/O priority{bound}"

    def _set_class(self, io_class: IoClass) -> None:
        """A thread begins as its process is, and is set again only when that is to change."""
        if io_class is not getattr(self._thread, "io_class", IoClass.NORMAL):
            set_io_class(io_class)
            self._thread.io_class = io_class
