"""Who is next when room is short: small ones pass large ones that still wait, as far as each of these allows. Pure."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

PATIENCE: Final = 4  # times its own need that may pass each of those who wait

Who = TypeVar("Who", bound=Hashable)
Rank = tuple[int, int]  # who stands before whom: the lower


@dataclasses.dataclass(slots=True)
class _Place(Generic[Who]):
    """One that waits.

    Attributes:
        patience: What may still pass it, in units of need.
    """

    who: Who
    rank: Rank
    need: int
    patience: int


class WaitingLine(Generic[Who]):
    """Those who wait for room, by rank, which is their order of arrival.

    Where the first finds no room, others may find some that need less than everybody before them: they pass. Whoever is
    passed lets `PATIENCE` times what it needs itself go by, all together, and then nobody more: so a large one is served
    after all who came before it, and a bounded part of those who came later, however many small ones come. Those who need
    as much as one another never pass.
    """

    def __init__(self) -> None:
        self._places: list[_Place[Who]] = []  # by rank
        self._by_who: dict[Who, _Place[Who]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, who: object) -> bool:
        return who in self._by_who

    def __iter__(self) -> Iterator[Who]:
        return (place.who for place in self._places)

    @property
    def first(self) -> Who | None:
        """Who has waited longest; None where nobody waits."""
        return self._places[0].who if self._places else None

    def push(self, who: Who, need: int, rank: Rank) -> None:
        """It waits, behind those of lower rank; each rank is given once.

        Args:
            who: It; not in line.
            need: Of the room that all wait for, at least 1.
            rank: Its own.
        """
        assert who not in self._by_who
        place = _Place(who, rank, need, PATIENCE * need)
        bisect.insort(self._places, place, key=_rank)
        self._by_who[who] = place

    def remove(self, who: Who) -> None:
        """It waits no more, and has got nothing: nobody was passed."""
        del self._places[len(self._before(self._by_who.pop(who).rank))]

    def serve(self, who: Who) -> None:
        """It has got what it waited for, before all who stand before it."""
        own = self._by_who[who]
        self.note_passed(own.need, own.rank)
        self.remove(who)

    def candidates(self) -> Iterator[Who]:
        """The first, then those that may pass everybody before them; once one is served, ask anew."""
        least, patience = math.inf, math.inf
        for place in tuple(self._places):
            if place.need < least and place.need <= patience:
                yield place.who
            least, patience = min(least, place.need), min(patience, place.patience)

    def may_pass(self, need: int, rank: Rank) -> bool:
        """Whether one that is not in line, and needs so much, may go before all those that it would stand behind."""
        return all(need < place.need and need <= place.patience for place in self._before(rank))

    def note_passed(self, need: int, rank: Rank) -> None:
        """It has been served before them; `may_pass` has said that it may."""
        for place in self._before(rank):
            place.patience -= need

    def check(self) -> None:
        """Raises AssertionError where nobody could say who is next, or somebody was passed by more than it allows."""
        assert sorted(self._places, key=_rank) == self._places
        assert {place.who: place for place in self._places} == self._by_who
        assert all(0 <= place.patience <= PATIENCE * place.need for place in self._places)

    def _before(self, rank: Rank) -> list[_Place[Who]]:
        return self._places[: bisect.bisect_left(self._places, rank, key=_rank)]


def _rank(place: _Place[Who]) -> Rank:
    return place.rank
