"""Why a cache has no room for a file, in figures, and what would make some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from services.common.checkpoint.cache_entry import CacheEntry, total_bytes

_OF_FREE: Final = (9, 10)


class Shortage(NamedTuple):
    """How things stand, in bytes.

    Attributes:
        needed_bytes: More than there are.
        free_bytes: On the cache's disk.
        used_bytes: By all that lies in the cache.
        pinned_bytes: The part of it that is not to go.
        stuck_bytes: The part that cannot go: pinned, or in use.
        asked_bytes: The bound that was asked for, if one was.
    """

    needed_bytes: int
    free_bytes: int
    used_bytes: int
    pinned_bytes: int
    stuck_bytes: int
    asked_bytes: int | None

    @classmethod
    def of(
        cls, entries: tuple[CacheEntry, ...], needed_bytes: int, free_bytes: int, asked_bytes: int | None
    ) -> Self:
        return cls(
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
            used_bytes=total_bytes(entries),
            pinned_bytes=total_bytes(entry for entry in entries if entry.is_pinned),
            stuck_bytes=total_bytes(entry for entry in entries if not entry.may_go),
            asked_bytes=asked_bytes,
        )

    @property
    def text(self) -> str:
        """All of it for people, with the remedies that would help."""
        most_bytes = bound_bytes(self.asked_bytes, self.used_bytes, self.free_bytes)
        return (
            f"no room in the artifact cache: {self.needed_bytes} bytes are needed, {self.free_bytes} are free on its "
            f"disk, {self.used_bytes} of at most {most_bytes} are taken ({self.pinned_bytes} pinned, "
            f"{self.stuck_bytes} pinned or in use); {', or '.join(self._remedies())}"
        )

    def _remedies(self) -> Iterable[str]:
        least_bytes = self.needed_bytes + self.stuck_bytes
        if self.asked_bytes is not None and least_bytes > self.asked_bytes:
            yield f"start loaders with --cache-max-bytes {least_bytes} at least"
        else:
            yield "free the disk, or give loaders a --cache-dir on a larger one"
        if self.pinned_bytes:
            yield "unpin what may go: halogen cache unpin"


def bound_bytes(asked_bytes: int | None, used_bytes: int, free_bytes: int) -> int:
    """What a cache may take: what was asked for, else most of what it has and could have."""
    if asked_bytes is not None:
        return asked_bytes
    part, of = _OF_FREE
    return (used_bytes + free_bytes) * part // of
