"""One piece of work that many wait for: everybody hears its progress and its end; it is called off when all have left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, NamedTuple, TypeVar

_BETWEEN_S: Final = 0.05  # two tellings: each takes time of the cores on which blocks are digested

R = TypeVar("R")


class Done(NamedTuple):
    """How far the work is, in bytes."""

    done_bytes: int
    total_bytes: int


class Flight(Generic[R]):
    """The work's progress and outcome; all methods belong to the event loop.

    Attributes:
        call_off: Called once, when the last who waited leaves before the end; set by the owner. None goes on.
        is_called_off: Whether that has happened: who comes now waits for the end, and begins anew.
    """

    call_off: Callable[[], object] | None

    def __init__(self) -> None:
        self.call_off = None
        self.is_called_off = False
        self._done = Done(0, 0)
        self._outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._followers: set[asyncio.Event] = set()

    def expect(self, by_bytes: int) -> None:
        """There is so much more to do."""
        self._tell(Done(self._done.done_bytes, self._done.total_bytes + by_bytes))

    def advance(self, by_bytes: int) -> None:
        self._tell(Done(self._done.done_bytes + by_bytes, self._done.total_bytes))

    def finish(self, result: R) -> None:
        self._outcome.set_result(result)
        self._tell(self._done)

    def fail(self, failure: BaseException) -> None:
        self._outcome.set_exception(failure)
        self._outcome.exception()  # seen here: that nobody follows is no fault
        self._tell(self._done)

    @property
    def is_over(self) -> bool:
        return self._outcome.done()

    @property
    def follower_count(self) -> int:
        return len(self._followers)

    async def follow(self) -> AsyncGenerator[Done, None]:
        """Yields the progress now and, as it changes, every few hundredths of a second, until the work ends."""
        changed = asyncio.Event()
        self._followers.add(changed)
        try:
            while not self.is_over:
                changed.clear()
                yield self._done
                await changed.wait()
                await asyncio.wait([self._outcome], timeout=_BETWEEN_S)
        finally:
            self._followers.discard(changed)
            self._call_off_if_deserted()

    def result(self) -> R:
        """What came of it, once it is over; raises what it failed with."""
        return self._outcome.result()

    def _call_off_if_deserted(self) -> None:
        if self.call_off and not (self._followers or self.is_over or self.is_called_off):
            self.is_called_off = True
            self.call_off()

    def _tell(self, done: Done) -> None:
        self._done = done
        for follower in self._followers:
            follower.set()
