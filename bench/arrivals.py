"""Requests with the times at which they come: drawn by a seed, or as a service has really had them."""

from __future__ import annotations

import csv
import datetime as dt
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.ask import Size

SHORT: Final = Size(200, 100)
LONG: Final = Size(1800, 512)
LONG_SHARE: Final = 0.3
MEAN_TOKENS: Final = LONG_SHARE * sum(LONG) + (1 - LONG_SHARE) * sum(SHORT)


class Arrival(NamedTuple):
    """One request.

    Attributes:
        at_s: Seconds from the beginning.
        tokens: Of its answer.
        most: Tokens that its answer may have, for all that is known before it has ended.
        is_long: For whom the figures are.
    """

    at_s: float
    prompt: int
    tokens: int
    most: int
    is_long: bool


def drawn(count: int, seed: int) -> list[Arrival]:
    """The mix of short and long ones, in an order of chance, at the times of a Poisson process of one a second.

    How long an answer becomes is known beforehand.
    """
    chance = random.Random(seed)
    long = round(LONG_SHARE * count)
    sizes = chance.sample((LONG,) * long + (SHORT,) * (count - long), count)
    at_s, arrivals = 0.0, []
    for size in sizes:
        at_s += chance.expovariate(1)
        arrivals.append(Arrival(at_s, size.prompt, size.tokens, size.tokens, is_long=size == LONG))
    return arrivals


def traced(path: Path, count: int, scale: float | None = None) -> list[Arrival]:
    """The first requests of a trace (CSV: TIMESTAMP, ContextTokens, GeneratedTokens).

    It does not tell how long answers were allowed to become: as long as the longest of all is taken for each. As in the
    drawn mix, those are long that are the largest `LONG_SHARE`.

    Args:
        scale: Of their lengths; by default the mean request has as many tokens as in the drawn mix. Times stay as they are.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    longest = max(int(row["GeneratedTokens"]) for row in rows)
    rows = rows[:count]
    sizes = [Size(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    scale = scale or MEAN_TOKENS / statistics.fmean(map(sum, sizes))
    largest = sorted(map(sum, sizes))[round((1 - LONG_SHARE) * len(sizes))]
    begin = _time(rows[0]["TIMESTAMP"])
    return [
        Arrival(
            (_time(row["TIMESTAMP"]) - begin).total_seconds(),
            max(1, round(scale * size.prompt)),
            max(1, round(scale * size.tokens)),
            round(scale * longest),
            is_long=sum(size) >= largest,
        )
        for row, size in zip(rows, sizes, strict=True)
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
