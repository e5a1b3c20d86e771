"""Requests with the times at which they come: drawn by a seed, or as a service has really had them."""

from __future__ import annotations

import csv
import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.ask import Size

SHORT: Final = Size(200, 100)
LONG: Final = Size(1800, 512)
LONG_SHARE: Final = 0.3
LONG_TRACE_PROMPT: Final = (
    1500  # tokens of a prompt in a trace, before it is scaled, from which it counts as long
)


class Arrival(NamedTuple):
    """One request.

    Attributes:
        at_s: Seconds from the beginning.
        tokens: Of its answer.
        is_long: For whom the figures are.
    """

    at_s: float
    prompt: int
    tokens: int
    is_long: bool


def drawn(count: int, seed: int) -> list[Arrival]:
    """The mix of short and long ones, in an order of chance, at the times of a Poisson process of one a second."""
    chance = random.Random(seed)
    long = round(LONG_SHARE * count)
    sizes = chance.sample((LONG,) * long + (SHORT,) * (count - long), count)
    at_s, arrivals = 0.0, []
    for size in sizes:
        at_s += chance.expovariate(1)
        arrivals.append(Arrival(at_s, size.prompt, size.tokens, is_long=size == LONG))
    return arrivals


def traced(path: Path, count: int, scale: float) -> list[Arrival]:
    """The first requests of a trace (CSV: TIMESTAMP, ContextTokens, GeneratedTokens).

    Args:
        scale: Of their lengths; times stay as they are.
    """
    with path.open(newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(count), strict=False)]
    begin = _time(rows[0]["TIMESTAMP"])
    return [
        Arrival(
            (_time(row["TIMESTAMP"]) - begin).total_seconds(),
            max(1, round(scale * int(row["ContextTokens"]))),
            max(1, round(scale * int(row["GeneratedTokens"]))),
            is_long=int(row["ContextTokens"]) >= LONG_TRACE_PROMPT,
        )
        for row in rows
    ]


def stretched(arrivals: Sequence[Arrival], span_s: float) -> list[Arrival]:
    """The same, but coming within `span_s`: all at once where that is 0."""
    factor = span_s / arrivals[-1].at_s if arrivals[-1].at_s else 0.0
    return [arrival._replace(at_s=arrival.at_s * factor) for arrival in arrivals]


def prompt_of(number: int, arrival: Arrival, vocabulary: int) -> list[int]:
    """The random tokens of the request of that number: the same for everybody who replays it."""
    chance = random.Random(number)
    return [chance.randrange(vocabulary) for _ in range(arrival.prompt)]


def _time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text[:26]).replace(tzinfo=dt.UTC)
