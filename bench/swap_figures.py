"""What swaps come to: the figures that are promised, and lines for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from bench.figure import Figure
from bench.swap_leg import Swapped
from bench.swap_load import Delivery
from bench.swap_memory import Memory, furthest, slope
from bench.swap_windows import Spans, by_phase, delivered, longest_gap_s, p99_s

LEAST_REQUESTS: Final = 1_000
LEAST_TOKENS: Final = 1_000  # inside each window of a large model
MOST_RATIO: Final = 1.25
MOST_MEMORY_OVER: Final = 5.0
SLOPE_LOOKS: Final = 80
KIB: Final = 1 << 10
_WARM_LOOK: Final = 2  # when either artifact has been swapped to


class Times:
    """The times of one leg's tokens, by when they came."""

    def __init__(self, swapped: Swapped) -> None:
        self._windows = swapped.windows
        self._deliveries = [
            each
            for answer in swapped.answers
            for each in answer.deliveries
            if swapped.begin_s <= each.at_s < swapped.end_s
        ]
        inside = Spans((window.begin_s, window.end_s) for window in swapped.windows)
        self.inside_s = p99_s(each for each in self._deliveries if each.at_s in inside)
        self.steady_s = p99_s(each for each in self._deliveries if each.at_s not in inside)

    @property
    def ratio(self) -> float | None:
        """Of the 99th percentile inside the windows to that outside; None where one has nothing."""
        return self.inside_s / self.steady_s if self.inside_s and self.steady_s else None

    @property
    def fewest_tokens(self) -> int:
        """That came while a window was open."""
        return min(delivered(self._deliveries, window) for window in self._windows)

    @property
    def longest_gap_s(self) -> float:
        """Without a token for anybody, inside a window."""
        return max(longest_gap_s(self._deliveries, each.begin_s, each.end_s) for each in self._windows)

    @property
    def by_phase(self) -> Iterator[tuple[str, float, float]]:
        """Name, 99th percentile, and mean length, of each phase that had any token."""
        for phase, spans in by_phase(self._windows).items():
            time_s = p99_s(self._within(spans))
            if time_s is not None:
                yield phase, time_s, spans.mean_s

    def _within(self, spans: Spans) -> Iterator[Delivery]:
        return (each for each in self._deliveries if each.at_s in spans)


def lines(swapped: Swapped) -> list[str]:
    """One leg, told."""
    times = Times(swapped)
    swaps, requests = len(swapped.applied_s), len(swapped.answers)
    head = f"{swapped.leg.name}: {swaps} swaps, {requests} requests, capacity {swapped.capacity:.0f} tokens/s"
    p99 = f"{_ms(times.steady_s)} in steady state, {_ms(times.inside_s)} in windows"
    phases = [
        f"    {phase:10} {_ms(time_s):>9} (lasts {mean_s:.2f} s)" for phase, time_s, mean_s in times.by_phase
    ]
    failures = [f"  failed: {each.error}" for each in swapped.answers if not each.is_sound]
    return [head, f"  99th percentile of a token: {p99}", *phases, *_memory_lines(swapped.memory), *failures]


def _memory_lines(looks: Sequence[Memory]) -> list[str]:
    """What every part held when either artifact had been swapped to, what in the end, and how that rises."""
    warm = looks[min(_WARM_LOOK, len(looks) - 1) :]
    return [f"  {name:10} {_held([look.parts[name] / KIB for look in warm])}" for name in warm[0].parts]


def _held(row: Sequence[float]) -> str:
    rise = f", {slope(row).value:+.0f} KiB a swap" if len(row) > 1 else ""
    return f"holds {row[0]:.0f} to {row[-1]:.0f} KiB{rise}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


def figures(legs: Sequence[Swapped], swaps: int) -> list[Figure]:
    """All that is said of swaps; so many `swaps` were asked for."""
    return [
        *_counts(legs, swaps),
        *_times(legs),
        *_memory(legs),
        *(each for leg in legs for each in _told(leg)),
    ]


def _counts(legs: Sequence[Swapped], swaps: int) -> list[Figure]:
    answers = [answer for leg in legs for answer in leg.answers]
    failed = sum(not answer.is_sound for answer in answers)
    return [
        _none("swap_wrong_tokens", sum(leg.wrong_tokens for leg in legs), "tokens"),
        _none("swap_failed_requests", failed, "requests"),
        _none("swap_back_differences", sum(leg.differences for leg in legs), "answers"),
        Figure(name="swaps_applied", value=_applied(legs), unit="swaps", goal=swaps),
        Figure(name="swap_requests", value=len(answers), unit="requests", goal=LEAST_REQUESTS),
    ]


def _applied(legs: Sequence[Swapped]) -> int:
    """Those that were applied and of which the engine's log tells from the beginning to the end."""
    return sum(min(len(leg.applied_s), len(leg.windows)) for leg in legs)


def _none(name: str, value: int, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, goal=0, better="lower")


def _times(legs: Sequence[Swapped]) -> list[Figure]:
    large = [Times(leg) for leg in legs if leg.leg.is_large]
    ratios = [times.ratio for times in large if times.ratio is not None]
    why = "" if large else "no large model was swapped"
    return [
        Figure(
            name="swap_window_tokens",
            value=min((times.fewest_tokens for times in large), default=None),
            unit="tokens",
            goal=LEAST_TOKENS,
            skipped=why,
        ),
        Figure(
            name="swap_p99_ratio",
            value=max(ratios, default=None),
            unit="x",
            goal=MOST_RATIO,
            better="lower",
            skipped=why or "no token came inside a window, or none outside",
        ),
    ]


def _memory(legs: Sequence[Swapped]) -> list[Figure]:
    over = [
        furthest(leg.memory[_WARM_LOOK:], leg.memory[_WARM_LOOK])
        for leg in legs
        if len(leg.memory) > _WARM_LOOK
    ]
    longest = max((leg.memory for leg in legs), key=len, default=[])
    rise = (
        slope([look.total_bytes / KIB for look in longest[-SLOPE_LOOKS:]])
        if len(longest) > SLOPE_LOOKS
        else None
    )
    few = f"fewer than {SLOPE_LOOKS} swaps"
    return [
        Figure(
            name="swap_memory_over",
            value=100 * max(over) if over else None,
            unit="%",
            goal=MOST_MEMORY_OVER,
            better="lower",
            skipped="fewer than two swaps",
        ),
        Figure(
            name="swap_memory_rise_at_least",
            value=rise and rise.at_least,
            unit="KiB/swap",
            goal=0,
            better="lower",
            skipped=few,
        ),
        Figure(name="swap_memory_rise", value=rise and rise.value, unit="KiB/swap", skipped=few),
    ]


def _told(swapped: Swapped) -> list[Figure]:
    """What is promised of no leg alone."""
    name, times, baseline = swapped.leg.name, Times(swapped), swapped.baseline
    applied_s = statistics.median(swapped.applied_s)
    return [
        Figure(name=f"swap_capacity_{name}", value=swapped.capacity, unit="tokens/s"),
        Figure(name=f"swap_p99_ratio_{name}", value=times.ratio, unit="x", better="lower"),
        Figure(name=f"swap_applied_s_{name}", value=applied_s, unit="s", better="lower"),
        Figure(name=f"swap_gap_s_{name}", value=times.longest_gap_s, unit="s", better="lower"),
        Figure(name=f"stop_load_start_gap_s_{name}", value=baseline.unserved_s, unit="s", better="lower"),
        Figure(
            name=f"stop_load_start_refused_{name}", value=baseline.refused, unit="requests", better="lower"
        ),
    ]
