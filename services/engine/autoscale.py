"""How large the arena of keys and values is to be, by what is asked of it and what the host has. Pure."""

from __future__ import annotations

import dataclasses
import math
from typing import Final, NamedTuple

GROW_AT: Final = 0.7  # in use; below the schedulers' soft watermark, so that nobody waits meanwhile
SHRINK_AT: Final = 0.4
PRESSED: Final = 0.9  # the same where memory is short: the schedulers' hard watermark
STEP: Final = 0.25  # of what it is: so much it becomes larger or smaller, to 0.53 in use at most
CALM_S: Final = 30.0  # that little must have been in use before it becomes smaller
RECOVERY_S: Final = 60.0  # without pressure, before it becomes larger again
_ROUND: Final = 2 << 20  # bytes of a huge page


class View(NamedTuple):
    """The arena and its surroundings at one moment.

    Attributes:
        total_bytes: Its size.
        used_bytes: In use, reserved and waited for, or promised.
        alone_bytes: As `Demand` has it.
        room_bytes: What may be taken of the host's memory beside all that the arena may use already.
        is_pressed: Whether others on the host, or in the control group, are short of memory.
    """

    total_bytes: int
    used_bytes: int
    alone_bytes: int
    room_bytes: int
    is_pressed: bool = False


class Size(NamedTuple):
    """What the arena is to be.

    Attributes:
        told_bytes: What schedulers may promise from: never more than the arena will be when they have.
        total_bytes: What it is to be now.
    """

    told_bytes: int
    total_bytes: int


class _Leaving(NamedTuple):
    total_bytes: int
    due_s: float


@dataclasses.dataclass(slots=True)
class Autoscale:
    """Looks at the arena from time to time and says what it is to be.

    It grows as soon as it fills up, and shrinks slowly: after some time of little use, and only once whoever was
    promised memory by its old size has come. Where memory is short on the host, it shrinks at once as far as it can,
    and grows again only when that has been over for a while. Where it grows, where it shrinks, and what it comes to be
    then lie so far apart that the same use never leads back and forth.

    Attributes:
        floor_bytes: It is never smaller.
        most_bytes: It is never larger.
        notice_s: How long a promise may go unused.
    """

    floor_bytes: int
    most_bytes: int
    notice_s: float
    _busy_s: float | None = None  # when it was last in use for more than a little
    _pressed_s: float | None = None
    _leaving: _Leaving | None = None

    def decide(self, now_s: float, view: View) -> Size:
        """What the arena is to be; to be asked every second or so.

        Args:
            now_s: Of a clock that only goes forward.
            view: What is seen.
        """
        if view.is_pressed:
            self._pressed_s = now_s
        if self._busy_s is None or view.used_bytes > SHRINK_AT * view.total_bytes:
            self._busy_s = now_s
        if view.is_pressed:
            return self._at_once(
                min(view.total_bytes, max(self._least(view), _round_up(view.used_bytes / PRESSED)))
            )
        if view.used_bytes >= GROW_AT * (self._leaving or view).total_bytes:
            return self._at_once(self._larger(now_s, view))
        if self._leaving:
            return self._leave(now_s, view, self._leaving)
        if now_s - self._busy_s >= CALM_S and self._smaller(view) < view.total_bytes:
            self._busy_s = now_s
            self._leaving = _Leaving(self._smaller(view), now_s + self.notice_s)
            return Size(self._leaving.total_bytes, view.total_bytes)
        return Size(view.total_bytes, view.total_bytes)

    def _at_once(self, total_bytes: int) -> Size:
        self._leaving = None
        return Size(total_bytes, total_bytes)

    def _leave(self, now_s: float, view: View, leaving: _Leaving) -> Size:
        if now_s < leaving.due_s:
            return Size(leaving.total_bytes, view.total_bytes)
        return self._at_once(leaving.total_bytes)

    def _larger(self, now_s: float, view: View) -> int:
        if self._pressed_s is not None and now_s - self._pressed_s < RECOVERY_S:
            return view.total_bytes
        more = min(
            int(STEP * view.total_bytes) // _ROUND * _ROUND or _ROUND, view.room_bytes // _ROUND * _ROUND
        )
        return max(view.total_bytes, min(view.total_bytes + more, self.most_bytes))

    def _smaller(self, view: View) -> int:
        return max(self._least(view), int((1 - STEP) * view.total_bytes))

    def _least(self, view: View) -> int:
        """Whoever is let in can come to its end, be it alone."""
        return max(self.floor_bytes, view.alone_bytes)


def _round_up(total_bytes: float) -> int:
    return math.ceil(total_bytes / _ROUND) * _ROUND
