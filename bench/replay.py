"""What became of requests that came at their own times."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from bench.arrivals import Arrival
from bench.turn import percentile


class Fate(NamedTuple):
    """One request's, in seconds from its arrival."""

    is_long: bool
    first_s: float
    last_s: float


class Fill(NamedTuple):
    """How the arena stood at a moment.

    Attributes:
        at_s: Seconds from the beginning.
        stored: Tokens whose keys and values were stored, of requests under way.
        taken: Tokens that the blocks in use would hold.
        lent: Tokens that all blocks set aside would hold.
        running: Requests under way.
    """

    at_s: float
    stored: int
    taken: int
    lent: int
    running: int


class Replay(NamedTuple):
    """All of them."""

    fates: list[Fate]
    fills: list[Fill]
    seconds: float

    @property
    def short_p99_s(self) -> float:
        """From arrival to the last token: one in a hundred short requests takes longer."""
        return percentile(sorted(fate.last_s for fate in self.fates if not fate.is_long), 0.99)

    @property
    def long_first_s(self) -> float:
        """To the first token of long requests, on average."""
        return statistics.fmean(fate.first_s for fate in self.fates if fate.is_long)

    @property
    def fragmentation(self) -> float:
        """The part of the blocks in use that holds nothing, over all moments."""
        taken = sum(fill.taken for fill in self.fills)
        return 1 - sum(fill.stored for fill in self.fills) / taken if taken else 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._asdict()))

    @classmethod
    def read(cls, path: Path) -> Self:
        told = json.loads(path.read_text())
        fates, fills = [Fate(*each) for each in told["fates"]], [Fill(*each) for each in told["fills"]]
        return cls(fates, fills, told["seconds"])


def write_arrivals(path: Path, arrivals: Sequence[Arrival]) -> None:
    path.write_text(json.dumps(arrivals))


def read_arrivals(path: Path) -> list[Arrival]:
    return [Arrival(*each) for each in json.loads(path.read_text())]
