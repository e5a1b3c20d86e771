"""Files of which every byte was verified here a moment ago, as part of other work: they need not be read for it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.loader.file_stamp import FileStamp


class VerifiedLately:
    """Paths, each with what the kernel said of the file before it was read.

    Args:
        keep_s: How long that counts: what a disk does to a file later, no stamp tells.
        clock_s: Monotonic seconds.
    """

    def __init__(self, keep_s: float, clock_s: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock_s = clock_s
        self._read: dict[Path, tuple[FileStamp, float]] = {}

    def add(self, path: Path, before: FileStamp) -> None:
        """All of the file has been read and verified, since it was as `before` says."""
        now_s = self._clock_s()
        self._read = {each: known for each, known in self._read.items() if now_s - known[1] < self._keep_s}
        self._read[path] = before, now_s

    def has(self, path: Path) -> bool:
        """Whether that was not long ago, and nobody has touched the file since."""
        known = self._read.get(path)
        return known is not None and self._clock_s() - known[1] < self._keep_s and known[0].is_of(path)
