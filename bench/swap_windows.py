"""When swaps went on, read from the engine's log, and what was delivered inside of them and outside. Pure."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bench.swap_load import Delivery
from services.common.ids import ArtifactId


class Mark(NamedTuple):
    """A moment of a swap.

    Attributes:
        phase: What begins then.
        at_s: Since the epoch.
    """

    phase: str
    at_s: float


class Window(NamedTuple):
    """One swap, from the first byte asked for to the last page of the old generation.

    Attributes:
        artifact_id: What came.
        marks: The first is the beginning; in order.
    """

    artifact_id: ArtifactId
    marks: tuple[Mark, ...]
    end_s: float

    @property
    def begin_s(self) -> float:
        return self.marks[0].at_s

    @property
    def phases(self) -> Iterator[tuple[str, float, float]]:
        """Each with its beginning and its end."""
        ends = (*(mark.at_s for mark in self.marks[1:]), self.end_s)
        return ((mark.phase, mark.at_s, end_s) for mark, end_s in zip(self.marks, ends, strict=True))


def windows(lines: Iterable[str]) -> list[Window]:
    """The swaps that a log of an engine with one model tells of.

    One ends when a generation is RETIRED, and is of the load that was begun last before: what comes where nothing was
    is no swap.
    """
    found: list[Window] = []
    coming, marks = "", list[Mark]()
    for event in _events(lines):
        at_s = dt.datetime.fromisoformat(event["timestamp"]).timestamp()
        if event["event"] == "checkpoint_start":
            if event["artifact_id"] != coming:  # else it is tried again
                coming, marks = event["artifact_id"], [Mark("FETCHING", at_s)]
        elif event["artifact_id"] == coming:
            marks.append(Mark(event["new"], at_s))
        elif event["new"] == "RETIRED" and marks:
            found.append(Window(ArtifactId(coming), tuple(marks), at_s))
            coming, marks = "", []
    return found


def _events(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Those of a log that tell of generations; lines of others are passed over."""
    for line in lines:
        if '"checkpoint_start"' in line or '"generation_state"' in line:
            yield json.loads(line)


class Spans:
    """Stretches of time, none of which overlap.

    Args:
        spans: Beginnings and ends.
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin_s for begin_s, _ in self._spans]

    @property
    def mean_s(self) -> float:
        """How long one is on average."""
        return statistics.fmean(end_s - begin_s for begin_s, end_s in self._spans)

    def __contains__(self, at_s: float) -> bool:
        index = bisect.bisect_right(self._begins, at_s) - 1
        return index >= 0 and at_s < self._spans[index][1]


def delivered(deliveries: Iterable[Delivery], window: Window) -> int:
    """Tokens that came while it was open."""
    return sum(each.tokens for each in deliveries if window.begin_s <= each.at_s < window.end_s)


def p99_s(deliveries: Iterable[Delivery]) -> float | None:
    """The 99th percentile, over tokens, of the seconds that each took; first tokens have none. None of none."""
    waits = sorted(
        itertools.chain.from_iterable(
            itertools.repeat(each.waited_s / each.tokens, each.tokens)
            for each in deliveries
            if each.waited_s is not None
        )
    )
    return waits[math.ceil(0.99 * len(waits)) - 1] if waits else None


def longest_gap_s(deliveries: Iterable[Delivery], begin_s: float, end_s: float) -> float:
    """The longest time within a stretch in which nobody was delivered anything."""
    times = sorted(each.at_s for each in deliveries if begin_s < each.at_s < end_s)
    return max(later - earlier for earlier, later in itertools.pairwise([begin_s, *times, end_s]))


def by_phase(spans: Sequence[Window]) -> dict[str, Spans]:
    """When each phase went on, over all swaps."""
    found: dict[str, list[tuple[float, float]]] = {}
    for window in spans:
        for phase, begin_s, end_s in window.phases:
            found.setdefault(phase, []).append((begin_s, end_s))
    return {phase: Spans(times) for phase, times in found.items()}
