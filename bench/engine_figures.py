"""What the engine's benchmark promises, and what turns come to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from bench.engine_names import LLAMACPP, OURS, SERVED_OURS, VLLM
from bench.engine_section import SECTIONS
from bench.figure import Figure
from bench.ratio import Ratio
from bench.turn import Turn, Turns

MOST_WIRE_SHARE: Final = 0.08
LEAST_OF_BANDWIDTH: Final = 0.9
_RATE: Final = "rate"


class Promise(NamedTuple):
    """Ours over a peer's in one workload.

    Attributes:
        value: Of a turn, by the name of its attribute.
        goal: None where it is only told.
    """

    name: str
    section: str
    workload: str
    peer: str
    goal: float | None
    value: Literal["rate", "first_p50_s", "first_p99_s"] = _RATE

    def figures(self, turns: Turns) -> Iterator[Figure]:
        """The ratio, and the bound that is the worse one for us."""
        ratio = turns.ratio(self.section, self.workload, (OURS, self.peer), self._value)
        yield from ratio_figures(self.name, ratio, self.goal, "higher" if self.value == _RATE else "lower")

    def _value(self, turn: Turn) -> float:
        return float(getattr(turn, self.value))


def _first_tokens() -> Iterator[Promise]:
    for workload in ("single", "mix8", "mix32", "mix64"):
        for part in ("p50", "p99"):
            value: Literal["first_p50_s", "first_p99_s"] = "first_p50_s" if part == "p50" else "first_p99_s"
            yield Promise(
                f"served_first_token_{part}_{workload}_vs_vllm", "served", workload, VLLM, 1.0, value
            )


PROMISES: Final = (
    Promise("decode_small_vs_vllm", "small", "decode128", VLLM, 1.8),
    Promise("decode1024_small_vs_vllm", "small", "decode1024", VLLM, None),
    Promise("decode_small_vs_llamacpp", "small", "decode128", LLAMACPP, 1.2),
    Promise("decode1024_small_vs_llamacpp", "small", "decode1024", LLAMACPP, None),
    Promise("prefill512_small_vs_vllm", "small", "prefill512", VLLM, 1.1),
    Promise("prefill2048_small_vs_vllm", "small", "prefill2048", VLLM, None),
    Promise("mix8_small_vs_vllm", "small", "mix8", VLLM, 1.2),
    Promise("mix32_small_vs_vllm", "small", "mix32", VLLM, 1.2),
    Promise("mix64_small_vs_vllm", "small", "mix64", VLLM, 1.1),
    Promise("decode_medium_vs_vllm", "medium", "decode128", VLLM, None),
    Promise("decode_medium_vs_llamacpp", "medium", "decode128", LLAMACPP, None),
    Promise("prefill512_medium_vs_vllm", "medium", "prefill512", VLLM, None),
    Promise("mix8_medium_vs_vllm", "medium", "mix8", VLLM, 1.0),
    Promise("mix32_medium_vs_vllm", "medium", "mix32", VLLM, 1.0),
    Promise("served_single_vs_vllm", "served", "single", VLLM, 1.8),
    Promise("served_single_vs_llamacpp", "served", "single", LLAMACPP, None),
    Promise("served_mix8_vs_vllm", "served", "mix8", VLLM, 1.6),
    Promise("served_mix32_vs_vllm", "served", "mix32", VLLM, 1.3),
    Promise("served_mix64_vs_vllm", "served", "mix64", VLLM, 1.25),
    *_first_tokens(),
)


def figures(turns: Turns, medium_step_bytes: int) -> list[Figure]:
    """Everything that is promised, measured or not.

    Args:
        medium_step_bytes: What one step of the medium model reads of its weights.
    """
    found = [figure for promise in PROMISES for figure in promise.figures(turns)]
    return [*found, *_of_bandwidth(turns, medium_step_bytes), *_wire_share(turns)]


def ratio_figures(
    name: str, ratio: Ratio | None, goal: float | None, better: Literal["higher", "lower"]
) -> Iterator[Figure]:
    """The mean, which is what is promised, and how far 95 % of confidence reach to its worse side."""
    if ratio is None:
        yield Figure(
            name=name, value=None, unit="x", goal=goal, better=better, skipped="not measured together"
        )
        return
    yield Figure(name=name, value=ratio.mean, unit="x", goal=goal, better=better)
    if ratio.pairs > 1:
        bound, said = (ratio.at_least, "at_least") if better == "higher" else (ratio.at_most, "at_most")
        yield Figure(name=f"{name}_{said}", value=bound, unit="x", better=better)


def _of_bandwidth(turns: Turns, step_bytes: int) -> Iterator[Figure]:
    """What one stream of the medium model reads a second over what memory gave beside it."""
    parts = [turn.rate * step_bytes / 1e9 / turn.bandwidth for turn in turns.of("medium", "decode128", OURS)]
    ratio = Ratio.of(parts) if parts else None
    yield from ratio_figures("decode_medium_vs_bandwidth", ratio, LEAST_OF_BANDWIDTH, "higher")


def _wire_share(turns: Turns) -> Iterator[Figure]:
    """The part of its time that a token spends on anything but the engine."""
    ratio = turns.ratio("wire", "mix32", (SERVED_OURS, OURS))
    share = None if ratio is None else 1 - ratio.mean
    skipped = "" if ratio else "not measured together"
    yield Figure(
        name="wire_share", value=share, unit="", goal=MOST_WIRE_SHARE, better="lower", skipped=skipped
    )
    if ratio and ratio.pairs > 1:
        yield Figure(name="wire_share_at_most", value=1 - ratio.at_least, unit="", better="lower")


def tables(turns: Turns) -> Iterator[str]:
    """Tokens a second of everybody, by section: the median, with the lowest and the highest."""
    for section in SECTIONS.values():
        names = list(dict.fromkeys(turn.contender for turn in turns if turn.section == section.name))
        if names:
            yield from _table(
                f"{section.name}, tokens/s", turns, section.name, section.workloads, names, _rates
            )
    served = SECTIONS["served"]
    names = list(dict.fromkeys(turn.contender for turn in turns if turn.section == served.name))
    if names:
        yield from _table(
            "served, first token, s: p50, p99", turns, served.name, served.workloads, names, _firsts
        )


def _table(
    title: str,
    turns: Turns,
    section: str,
    workloads: tuple[str, ...],
    names: list[str],
    cell: Callable[[list[Turn]], str],
) -> Iterator[str]:
    yield ""
    yield "| " + " | ".join((title, *workloads)) + " |"
    yield "| " + " | ".join("---" for _ in (title, *workloads)) + " |"
    for name in names:
        cells = [cell(found) if (found := turns.of(section, each, name)) else "-" for each in workloads]
        yield "| " + " | ".join((name, *cells)) + " |"


def _rates(turns: list[Turn]) -> str:
    rates = sorted(turn.rate for turn in turns)
    return f"{statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f})"


def _firsts(turns: list[Turn]) -> str:
    p50, p99 = (
        statistics.median(getattr(turn, name) for turn in turns) for name in ("first_p50_s", "first_p99_s")
    )
    return f"{p50:.2f}, {p99:.2f}"
