"""The calls that a server is working on: counted, and ended or refused when the server says so."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Iterator
from typing import Final

from services.common.errors import HalogenError, Overloaded, Unavailable
from services.common.stall import StallTimer

SLOW_READER_S: Final = 30.0
_RETRY_AFTER_S: Final = 0.5
_ALWAYS: Final = frozenset({"Abort", "ReleaseTicket", "Check", "List"})  # they end or tell, and begin nothing


class Call:
    """One call under way.

    Args:
        method: ``/package.Service/Method``.
        slow_reader_s: How long its reader may take nothing of what is sent.
    """

    def __init__(self, method: str, slow_reader_s: float) -> None:
        self.name = method.rpartition("/")[2]
        self.is_watch = self.name.startswith("Watch")  # it lasts as long as its caller: no work to wait for
        self._why: HalogenError | None = None
        self._bound: asyncio.Timeout | None = None
        self._sending = StallTimer(slow_reader_s, lambda: self.end(_slow_reader(slow_reader_s)))

    @property
    def why_ended(self) -> HalogenError | None:
        """The reason of `end`; None where nobody has called it."""
        return self._why

    def end(self, why: HalogenError) -> None:
        """Makes `under_way` raise `why` at once; the first reason counts."""
        self._why = self._why or why
        if self._bound is not None:
            self._bound.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def under_way(self) -> AsyncIterator[None]:
        """The scope of the call's work; raises the reason when the call is ended in it."""
        token = _served.set(self)
        try:
            async with asyncio.timeout(None) as self._bound:
                yield
        except TimeoutError:
            if self._why is None:
                raise
            raise self._why from None
        finally:
            self._bound = None
            self._sending.close()
            _served.reset(token)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """The scope of one message on its way to a reader, who may be slow but not for ever."""
        self._sending.progress()
        try:
            yield
        finally:
            self._sending.rest()


_served: contextvars.ContextVar[Call | None] = contextvars.ContextVar("served", default=None)


def why_ended() -> HalogenError | None:
    """Why the server ends the call that it serves here; None where the server does not end it.

    What is cancelled within a call sees by it who has left: the caller, or we.
    """
    call = _served.get()
    return call.why_ended if call else None


class InFlight:
    """Keeps calls by scope, so that no exit path can forget to count down.

    Args:
        slow_reader_s: How long a call's reader may take nothing of what is sent.

    Attributes:
        refusing: Set once new work is refused.
        refused: How many calls have been.
    """

    def __init__(self, slow_reader_s: float = SLOW_READER_S) -> None:
        self._slow_reader_s = slow_reader_s
        self._calls: set[Call] = set()
        self._count = 0
        self.refusing = asyncio.Event()
        self.refused = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._gone = asyncio.Event()
        self._gone.set()

    @property
    def count(self) -> int:
        """Calls under way, watches left out."""
        return self._count

    @contextlib.contextmanager
    def track(self, method: str) -> Iterator[Call]:
        """Keeps one call while the scope lasts."""
        call = Call(method, self._slow_reader_s)
        self._calls.add(call)
        self._count += not call.is_watch
        self._tell()
        try:
            yield call
        finally:
            self._calls.remove(call)
            self._count -= not call.is_watch
            self._tell()

    def refuse(self) -> None:
        """Lets no new work in from now on; what ends work, and watches, still come in."""
        self.refusing.set()

    def check(self, call: Call) -> None:
        """Raises Unavailable (STOPPING) when `call` may not begin."""
        if self.refusing.is_set() and not (call.is_watch or call.name in _ALWAYS):
            self.refused += 1
            raise stopping()

    def end_all(self, why: HalogenError) -> None:
        """Ends every call, watches too, with that error."""
        for call in tuple(self._calls):
            call.end(why)

    async def wait_idle(self) -> None:
        """Returns when there is no work; watches may go on."""
        await self._idle.wait()

    async def wait_gone(self) -> None:
        """Returns when there is no call at all."""
        await self._gone.wait()

    def _tell(self) -> None:
        for event, is_so in ((self._idle, not self._count), (self._gone, not self._calls)):
            if is_so:
                event.set()
            else:
                event.clear()


def stopping() -> Unavailable:
    return Unavailable(
        "this process is stopping; ask another, or again shortly",
        reason="STOPPING",
        retry_after_s=_RETRY_AFTER_S,
    )


def _slow_reader(patience_s: float) -> Overloaded:
    return Overloaded(
        f"nothing of the answer was read for {patience_s:g} s, so it was given up; read faster, or ask for less",
        reason="SLOW_READER",
    )
