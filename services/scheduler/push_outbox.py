"""Which commit is pushed to the registry of models next, and when: the decision, without clock or wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from services.common.backoff import Backoff

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 60.0


class Push(NamedTuple):
    """A commit that is to be pushed, by the key of its record.

    Attributes:
        due_s: When; 0 for one that was not tried yet.
    """

    due_s: float
    key: str


@dataclasses.dataclass(slots=True)
class _Tried:
    """A commit that was tried and is to be tried again."""

    backoff: Backoff
    times: int = 0
    due_s: float = 0.0


class PushOutbox:
    """Remembers how often each commit that is to be pushed was tried.

    What is to be pushed is on record with the commits; how often it was tried is this scheduler's, and a new leader
    begins anew.

    Args:
        tries: So many, and a push has failed.
        backoff: Makes the pauses between tries of one commit.
    """

    def __init__(
        self, tries: int, backoff: Callable[[], Backoff] = lambda: Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
    ) -> None:
        self._tries = tries
        self._backoff = backoff
        self._tried: dict[str, _Tried] = {}

    def next_push(self, pending: Collection[str]) -> Push | None:
        """The one that is due first, those of a model in the order of their revisions; None when none is pending.

        Args:
            pending: Keys of all commits that are to be pushed; others are forgotten.
        """
        self._tried = {key: tried for key, tried in self._tried.items() if key in pending}
        return min((Push(self._due_s(key), key) for key in pending), default=None)

    def failed(self, key: str, now_s: float) -> bool:
        """Notes a try that came to nothing; tells whether it was the last one."""
        tried = self._tried.setdefault(key, _Tried(self._backoff()))
        tried.times += 1
        tried.due_s = now_s + tried.backoff.next_s()
        return tried.times >= self._tries

    def forget(self, key: str) -> None:
        """Its push has ended: another one begins anew."""
        self._tried.pop(key, None)

    def _due_s(self, key: str) -> float:
        tried = self._tried.get(key)
        return tried.due_s if tried else 0.0
