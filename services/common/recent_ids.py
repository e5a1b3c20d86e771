"""Ids that are remembered for a while."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class RecentIds(Generic[K]):
    """The latest ids that were added, bounded by count and age. Time comes in, in seconds of any one clock.

    Args:
        most: How many are kept.
        keep_s: How long each is kept.
    """

    def __init__(self, most: int, keep_s: float) -> None:
        self._most = most
        self._keep_s = keep_s
        self._added_s: dict[K, float] = {}  # in order of time

    def __len__(self) -> int:
        return len(self._added_s)

    def add(self, item: K, now_s: float) -> None:
        self._added_s.pop(item, None)
        self._added_s[item] = now_s
        if len(self._added_s) > self._most:
            del self._added_s[next(iter(self._added_s))]

    def holds(self, item: K, now_s: float) -> bool:
        added_s = self._added_s.get(item)
        return added_s is not None and now_s - added_s <= self._keep_s

    def take(self, item: K, now_s: float) -> bool:
        """Whether it was held; it is not any more."""
        held = self.holds(item, now_s)
        self._added_s.pop(item, None)
        return held
