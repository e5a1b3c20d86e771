"""One contender's turn at a workload, and the file in which turns are kept from run to run."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from bench.ratio import Ratio
from bench.workload import Timing, Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a contender did.

    Attributes:
        round: Turns of one round stand beside each other: they are a pair.
        rate: Tokens a second, as the workload measures it: the median of its repeats.
        first_p50_s: Seconds to the first token of its requests.
        first_p99_s: Of the slowest in a hundred.
        bandwidth: GB/s of memory, mean of right before and right after.
        others_cores: Cores that were kept busy by whoever had no turn: the other contenders, and all else.
    """

    section: str
    workload: str
    contender: str
    round: str
    rate: float
    first_p50_s: float
    first_p99_s: float
    bandwidth: float
    others_cores: float

    @classmethod
    def of(cls, workload: Workload, repeats: Sequence[Sequence[Timing]], **where: float | str) -> Self:
        """From the times of every request of every repeat."""
        firsts = sorted(timing.first_s for timings in repeats for timing in timings)
        measured = {
            "workload": workload.name,
            "rate": statistics.median(workload.rate(timings) for timings in repeats),
            "first_p50_s": statistics.median(firsts),
            "first_p99_s": percentile(firsts, 0.99),
        }
        return cls(**measured, **where)  # type: ignore[arg-type]  # the rest is the caller's

    def __str__(self) -> str:
        who = f"{self.section:8} {self.workload:12} {self.contender:15}"
        firsts = f"first token {self.first_p50_s * 1e3:6.0f} ms, slowest {self.first_p99_s * 1e3:6.0f} ms"
        return f"{who} {self.rate:8.1f} tokens/s  {firsts}  {self.bandwidth:5.1f} GB/s  others {self.others_cores:.2f} cores"


def percentile(rising: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed."""
    return rising[min(len(rising) - 1, int(share * len(rising)))]


class Turns:
    """Turns, in the order in which they were taken.

    Args:
        path: A file of JSON, one turn a line, that new ones are added to; what it has already counts too.
        most_others: Cores that others may have kept busy beside a turn that counts.
    """

    def __init__(self, path: Path | None = None, most_others: float = math.inf) -> None:
        self._path = path
        self._most_others = most_others
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._turns = [Turn(**json.loads(line)) for line in lines]

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns)

    def add(self, turn: Turn) -> None:
        self._turns.append(turn)
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(turn)) + "\n")

    @property
    def disturbed(self) -> int:
        """How many do not count."""
        return sum(turn.others_cores > self._most_others for turn in self._turns)

    def of(self, section: str, workload: str, contender: str) -> list[Turn]:
        """A contender's turns at a workload, as far as they count."""
        wanted = (section, workload, contender)
        calm = (turn for turn in self._turns if turn.others_cores <= self._most_others)
        return [turn for turn in calm if (turn.section, turn.workload, turn.contender) == wanted]

    def ratio(
        self,
        section: str,
        workload: str,
        contenders: tuple[str, str],
        value: Callable[[Turn], float] = lambda turn: turn.rate,
    ) -> Ratio | None:
        """The first contender's value over the second's, round by round; None where they never met."""
        ours, theirs = ({turn.round: turn for turn in self.of(section, workload, who)} for who in contenders)
        ratios = [value(turn) / value(theirs[turn.round]) for turn in ours.values() if turn.round in theirs]
        return Ratio.of(ratios) if ratios else None
