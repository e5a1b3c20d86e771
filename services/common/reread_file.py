"""What a file says, also after it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

T = TypeVar("T")

LOOK_S: Final = 1.0
_Stamp = tuple[int, ...]

log = structlog.get_logger()


class RereadFile(Generic[T]):
    """Reads the file anew when it is another one, at the next question after `LOOK_S`; there is no watcher.

    What cannot be read then changes nothing: the last good content stays in force, and the log says why, once.

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
        self._is_taken = True
        self._look_at = now() + LOOK_S

    def __call__(self) -> T:
        """The content, at most `LOOK_S` old."""
        if (now := self._now()) >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        return self._content

    @property
    def is_taken(self) -> bool:
        """Whether the content is what the file says now; looks, as a question does."""
        self()
        return self._is_taken

    def _look(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._content = self._read(self._path)
        except ValueError as fault:
            self._is_taken = False
            log.error(  # noqa: TRY400  # it says all; where we were is nobody's business
                "file_not_taken", path=str(self._path), error=str(fault), in_force="what it said before"
            )
        else:
            self._is_taken = True
            log.info("file_read_again", path=str(self._path))


def _stamp(path: Path) -> _Stamp | None:
    """What changes with the file, with who may read it, too; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns
