"""What happens in the simulation, in which order: made from a seed, run, and cut down when it fails."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.simulation.moves import KINDS, Picks
from tests.simulation.rest import check_rest, come_to_rest
from tests.simulation.swap_invariants import Broken
from tests.simulation.world import World

LENGTH: Final = 800  # moves; about ten swaps, requests and faults among them


class Move(NamedTuple):
    """What happens next; the number settles what its kind leaves open."""

    kind: str
    number: int


def drawn(seed: int, weights: Mapping[str, float], length: int) -> tuple[Move, ...]:
    """So many moves of these kinds, the same ones for a seed each time."""
    chance = random.Random(seed)
    kinds = chance.choices(list(weights), list(weights.values()), k=length)
    return tuple(Move(kind, chance.getrandbits(32)) for kind in kinds)


class Schedule(NamedTuple):
    """Moves, and the seed that they came from. Any part of a schedule is one."""

    seed: int
    moves: tuple[Move, ...]

    @classmethod
    def of(cls, seed: int, length: int = LENGTH) -> Schedule:
        """The one of that seed."""
        return cls(seed, drawn(seed, {name: kind.weight for name, kind in KINDS.items()}, length))

    def run(self) -> World:
        """Makes its moves, lets all come to rest, and returns what is there then; raises Broken at the first fault."""
        world = World(self.seed)
        for kind, number in self.moves:
            KINDS[kind].make(world, Picks(number))
        come_to_rest(world)
        check_rest(world)
        return world

    @property
    def failure(self) -> Exception | None:
        """What breaks in it: an invariant, or the product itself."""
        try:
            self.run()
        except Exception as failure:  # noqa: BLE001  # whatever it is, it is what was looked for
            return failure
        return None

    def shrunk(self, failure: Exception) -> Schedule:
        """A short one that fails alike: parts are left out for as long as it does."""
        moves, size = self.moves, len(self.moves) // 2
        while size:
            start = 0
            while start < len(moves):
                fewer = Schedule(self.seed, (*moves[:start], *moves[start + size :]))
                if _what(fewer.failure) == _what(failure):
                    moves = fewer.moves
                else:
                    start += size
            size //= 2
        return Schedule(self.seed, moves)

    def __str__(self) -> str:
        """As it can be pasted into a test."""
        moves = ", ".join(f"Move({kind!r}, {number})" for kind, number in self.moves)
        return f"Schedule({self.seed}, ({moves},)).run()"


def _what(failure: Exception | None) -> str:
    return failure.invariant if isinstance(failure, Broken) else type(failure).__name__
