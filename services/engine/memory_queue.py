"""Requests that wait for the arena's memory, to begin or to come back: by age, but that small ones pass large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from services.common.waiting_line import WaitingLine
from services.engine.loan import Loan


class MemoryQueue:
    """Those without memory, and who is next.

    What nobody waits for (warm-ups, trials) stands behind all others and passes none of them here. It cannot wait to
    begin, so it may begin before them; that is not held against anybody's patience.

    Attributes:
        waiting_bytes: What the first of them needs; to be asked by any thread.
    """

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._line = WaitingLine[Loan]()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Loan]:
        return iter(self._line)

    def __contains__(self, loan: Loan) -> bool:
        return loan in self._line

    def push(self, loan: Loan) -> None:
        """It waits from now on."""
        loan.refused_room = None
        self._line.push(loan, loan.need_bytes, loan.rank)
        self._look()

    def remove(self, loan: Loan) -> None:
        """It has ended."""
        self._line.remove(loan)
        self._look()

    def may_begin(self, loan: Loan) -> bool:
        """Whether one that has just come may have memory before those who wait."""
        return loan.job.is_background or self._line.may_pass(loan.need_bytes, loan.rank)

    def note_begun(self, loan: Loan) -> None:
        """It has it."""
        if not loan.job.is_background:
            self._line.note_passed(loan.need_bytes, loan.rank)

    def serve(self, room_bytes: Callable[[], int], lend: Callable[[Loan], bool]) -> None:
        """Lends to one after the other, whoever is next, until nobody is lent anything.

        Args:
            room_bytes: What can be lent.
            lend: Lends one what it needs, if it may have it; tells whether it did.
        """
        while loan := self._next_served(room_bytes, lend):
            self._line.serve(loan)
        self._look()

    def check(self) -> None:
        """Raises AssertionError where the order is wrong."""
        self._line.check()

    def _next_served(self, room_bytes: Callable[[], int], lend: Callable[[Loan], bool]) -> Loan | None:
        """To look for pages takes time: nobody is tried again before anything has become free."""
        is_waited_for = False
        for loan in self._line.candidates():
            if is_waited_for and loan.job.is_background:
                return None
            is_waited_for = not loan.job.is_background
            room = room_bytes()
            if (loan.refused_room is None or room > loan.refused_room) and lend(loan):
                return loan
            loan.refused_room = room
        return None

    def _look(self) -> None:
        first = self._line.first
        self.waiting_bytes = first.need_bytes if first else 0
