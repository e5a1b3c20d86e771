"""Who gives up memory for whom, how, and when it comes back. Pure: facts come in, decisions go out."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

MOST_PREEMPTIONS: Final = 2  # of one request
HYSTERESIS: Final = 0.05  # of the arena: room beside a request's whole need before it comes back


class Way(enum.Enum):
    """What becomes of the keys and values of a request that is set back."""

    RECOMPUTE = "recompute"  # given up
    SWAP = "swap"  # copied out of the arena, and back


class Standing(NamedTuple):
    """A request that has memory, as far as others may take it.

    Attributes:
        age: When it came, counted; lower is older.
        held_bytes: What becomes free when it goes.
        preemptions: How many times it was set back.
        is_background: Nobody waits for its answer.
        is_leaving: It ends or is set back with the next step: its bytes are about to be free.
    """

    age: int
    held_bytes: int
    preemptions: int = 0
    is_background: bool = False
    is_leaving: bool = False

    def may_be_set_back_for(self, needy: Standing) -> bool:
        """Background goes for whom somebody waits; else only the younger for the older."""
        if self.is_leaving or self.preemptions >= MOST_PREEMPTIONS or not self.held_bytes:
            return False
        if self.is_background is not needy.is_background:
            return self.is_background
        return self.age > needy.age


def victims(needy: Standing, missing_bytes: int, others: Iterable[Standing]) -> list[Standing]:
    """Who is set back so that `needy` can go on: background first, and the youngest first.

    Nobody is where what is about to be free is enough, or where all who may be set back have too little: then others
    finish first. The oldest can always go on in the end, for all others are younger or finish by themselves.

    Args:
        needy: Cannot store its next token.
        missing_bytes: What it needs beyond the room that there is.
        others: All the others that have memory.
    """
    others = tuple(others)
    missing_bytes -= sum(other.held_bytes for other in others if other.is_leaving)
    chosen: list[Standing] = []
    candidates = [other for other in others if other.may_be_set_back_for(needy)]
    for candidate in sorted(candidates, key=lambda it: (it.is_background, it.age), reverse=True):
        if missing_bytes <= 0:
            break
        chosen.append(candidate)
        missing_bytes -= candidate.held_bytes
    return chosen if missing_bytes <= 0 else []


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The arena, as far as it may be lent to one who waits.

    Attributes:
        total_bytes: All of it.
        room_bytes: What can be lent now.
        growth_bytes: What those under way may need beyond what they have.
        is_used: Whether anybody has any.
    """

    total_bytes: int
    room_bytes: int
    growth_bytes: int
    is_used: bool

    def may_begin(self, need_bytes: int, headroom: float) -> bool:
        """Whether a new request is lent what it is expected to need.

        Args:
            need_bytes: That.
            headroom: The part of the arena above the hard watermark. It is kept for those who may grow, as far as
                they may; what is sure to be enough is lent to the last byte.
        """
        kept_bytes = min(self.growth_bytes, headroom * self.total_bytes) if self.is_used else 0
        return need_bytes + kept_bytes <= self.room_bytes

    def may_come_back(self, need_bytes: int) -> bool:
        """Whether one that was set back is lent all that it may need till its end, and others can go on as well."""
        kept_bytes = HYSTERESIS * self.total_bytes if self.is_used else 0
        return need_bytes + kept_bytes <= self.room_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What the two ways cost, in seconds of this machine.

    Attributes:
        copy_bytes_per_s: How fast keys and values are copied; measured when the engine starts.
        prefill_s_per_token: What a token of a prompt takes to compute; learned from the steps.
    """

    copy_bytes_per_s: float
    prefill_s_per_token: float

    def cheaper(self, tokens: int, stored_bytes: int, swap_room_bytes: int) -> Way:
        """The way that costs less; a copy goes out and back, and needs room outside of the arena.

        Args:
            tokens: Of which keys and values are stored.
            stored_bytes: Of these.
            swap_room_bytes: What may be taken outside of the arena.
        """
        if not 0 < stored_bytes <= swap_room_bytes:
            return Way.RECOMPUTE
        is_swap = 2 * stored_bytes / self.copy_bytes_per_s < tokens * self.prefill_s_per_token
        return Way.SWAP if is_swap else Way.RECOMPUTE
