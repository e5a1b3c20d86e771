"""How long a publish that some engines are ready for waits for the others. Pure: time comes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.common.ids import Revision
from services.common.registry.records import Target


class Waiting(NamedTuple):
    """A publish: the key of its target, and its revision."""

    key: str
    revision: Revision


class Patience:
    """Remembers since when the first engine is ready for each publish.

    Engines' clocks are their own, so the time is this scheduler's; a new leader begins anew.

    Args:
        timeout_s: For publishes that do not say.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until_s: dict[Waiting, float] = {}

    def next_end_s(self, now_s: float) -> float | None:
        """When the next one will be over; None while nothing waits, or all that does has waited too long already."""
        return min((until_s for until_s in self._until_s.values() if until_s > now_s), default=None)

    def is_over(self, key: str, target: Target, now_s: float) -> bool:
        """Whether the time of a publish that an engine is ready for is over; the first question begins it."""
        own_ms = target.strategy.timeout_ms
        timeout_s = self._timeout_s if own_ms is None else own_ms / 1000
        return now_s >= self._until_s.setdefault(Waiting(key, target.revision), now_s + timeout_s)

    def keep(self, waiting: Iterable[Waiting]) -> None:
        """Forgets all others."""
        kept = set(waiting)
        self._until_s = {each: until_s for each, until_s in self._until_s.items() if each in kept}
