"""Whether a load may take memory: decided before it starts, by limits and what is held of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from services.common.errors import Overloaded

DEFAULT_RATIO: Final = 0.85
_RETRY_AFTER_S: Final = 10.0


class Bound(NamedTuple):
    """A limit on memory, and how much of it is held.

    Attributes:
        name: Whose it is, for people: "this host".
        limit_bytes: All that there is.
        held_bytes: What is taken and cannot be had back.
    """

    name: str
    limit_bytes: int
    held_bytes: int

    def refusal(self, need_bytes: int, ratio: float) -> str:
        """The arithmetic if `need_bytes` more would pass `ratio` of the limit, else nothing."""
        if need_bytes + self.held_bytes <= ratio * self.limit_bytes:
            return ""
        share = f"{ratio:g} x limit {self.limit_bytes} bytes of {self.name}"
        return f"needs {need_bytes} + holds {self.held_bytes} > {share}"


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryGuard:
    """Keeps loads below a part of every limit, so that the kernel never has to kill somebody.

    Attributes:
        ratio: The part of each limit that may be held, above 0 and at most 1.
        read: Tells the limits as they stand.
    """

    ratio: float
    read: Callable[[], Sequence[Bound]]

    @property
    def emptied(self) -> MemoryGuard:
        """The same, where nothing is held: what that refuses never fits."""
        return dataclasses.replace(self, read=lambda: [bound._replace(held_bytes=0) for bound in self.read()])

    def refusal(self, need_bytes: int) -> str:
        """Why so many bytes more may not be taken now, or nothing."""
        refusals = (bound.refusal(need_bytes, self.ratio) for bound in self.read())
        return next(filter(None, refusals), "")

    @property
    def room_bytes(self) -> int | None:
        """How many bytes more may be taken now; None where there is no limit."""
        rooms = (int(self.ratio * bound.limit_bytes) - bound.held_bytes for bound in self.read())
        return min(rooms, default=None)

    def check(self, need_bytes: int) -> None:
        """Raises Overloaded, with the arithmetic, unless so many bytes more may be taken now."""
        if refusal := self.refusal(need_bytes):
            raise guarded(refusal)


UNGUARDED: Final = MemoryGuard(1, tuple)  # refuses nothing


def guarded(refusal: str) -> Overloaded:
    """The error for what a guard refuses."""
    return Overloaded(
        f"the load would pass the memory guard: {refusal}; free memory, raise the limit, or give a higher "
        "memory_guard_ratio (loaders: --memory-guard-ratio; engines: --checkpoint.memory-guard-ratio)",
        reason="MEMORY_GUARD",
        retry_after_s=_RETRY_AFTER_S,
    )
