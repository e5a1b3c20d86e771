"""What a file says, also after it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

T = TypeVar("T")

LOOK_S: Final = 1.0
_Stamp = tuple[int, int, int]

log = structlog.get_logger()


class RereadFile(Generic[T]):
    """Reads the file anew when it is another one, at the next question after `LOOK_S`; there is no watcher.

    What cannot be read then changes nothing: the last good content stays, and the log says why, once.

    Args:
        path: The file; there, and sound.
        read: Its content; raises ValueError where it is not sound.
        now: A clock, in seconds.
    """

    def __init__(
        self, path: Path, read: Callable[[Path], T], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._read, self._now = path, read, now
        self._stamp = _stamp(path)
        self._content = read(path)
        self._look_at = now() + LOOK_S

    def __call__(self) -> T:
        """The content, at most `LOOK_S` old."""
        if (now := self._now()) >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        return self._content

    def _look(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._content = self._read(self._path)
        except ValueError as fault:
            log.warning("file_not_taken", path=str(self._path), error=str(fault))
        else:
            log.info("file_read_again", path=str(self._path))


def _stamp(path: Path) -> _Stamp | None:
    """What changes with the file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
