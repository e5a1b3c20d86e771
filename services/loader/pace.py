"""How fast weights are read: as fast as they come, or gently while engines of this host serve."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from services.common.checkpoint.digest import BLOCK_BYTES
from services.loader.idle_time import idle_s
from services.loader.io_priority import IoClass, set_io_class
from services.loader.live_rate import LiveRate
from services.loader.token_bucket import TokenBucket


class Pace(Protocol):
    """Asked by every reading thread before every block."""

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Returns when so many bytes may be read, or once `stop` is set."""
        ...

    @property
    def holds_back(self) -> bool:
        """Whether somebody is served meanwhile."""
        ...

    @property
    def manners(self) -> str:
        """How reads hold back now, for people; empty when they do not."""
        ...


class FullSpeed:
    """Reads never wait."""

    holds_back = False
    manners = ""

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Returns at once."""


FULL_SPEED: Final = FullSpeed()


class GentlePace:
    """Full speed while nobody is served; beside live traffic idle I/O priority, and a rate by what the cores have left.

    Args:
        is_live: Whether an engine of this host serves; called from the reading threads.
        bytes_per_s: The most; 0 is no bound at all.
        clock_s: Monotonic seconds.
        idle_s: Seconds that all cores together have been idle.
    """

    def __init__(
        self,
        is_live: Callable[[], bool],
        bytes_per_s: int,
        clock_s: Callable[[], float] = time.monotonic,
        idle_s: Callable[[], float] = idle_s,
    ) -> None:
        self._is_live = is_live
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._idle_s = idle_s
        self._rate = LiveRate(max(1, bytes_per_s), clock_s())
        self._bucket = TokenBucket(max(1, bytes_per_s), BLOCK_BYTES, clock_s())
        self._taking = threading.Lock()
        self._thread = threading.local()

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        """Waits if engines serve, as `Pace.before` says."""
        is_live = self._is_live()
        self._set_class(IoClass.IDLE if is_live else IoClass.NORMAL)
        if is_live and self._bytes_per_s:
            with self._taking:
                wait_s = self._take(size_bytes, self._clock_s())
            stop.wait(wait_s)

    @property
    def holds_back(self) -> bool:
        return self._is_live()

    @property
    def manners(self) -> str:
        if not self._is_live():
            return ""
        bound = f", at most {self._bytes_per_s} bytes/s, fewer with busy cores" if self._bytes_per_s else ""
        return f"beside live traffic: idle I/O priority{bound}"

    def _take(self, size_bytes: int, now_s: float) -> float:
        """The seconds to wait."""
        if self._rate.is_due(now_s):
            self._rate.look(self._idle_s(), now_s)
            self._bucket.bytes_per_s = self._rate.bytes_per_s
        return self._bucket.take(size_bytes, now_s)

    def _set_class(self, io_class: IoClass) -> None:
        """A thread begins as its process is, and is set again only when that is to change."""
        if io_class is not getattr(self._thread, "io_class", IoClass.NORMAL):
            set_io_class(io_class)
            self._thread.io_class = io_class
