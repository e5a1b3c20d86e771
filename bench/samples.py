"""What was measured, by name and round, and what could not be."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One read of all bytes.

    Attributes:
        peak_bytes: Of memory, beyond what the process had before; None where nobody asks.
        pss_share: Of the mapping's resident bytes, those that this process alone pays for (Pss).
        note: What else there is to say of it.
    """

    seconds: float
    read_bytes: int
    peak_bytes: int | None = None
    pss_share: float | None = None
    note: str = ""

    @property
    def gb_per_s(self) -> float:
        return self.read_bytes / self.seconds / 1e9


@dataclasses.dataclass(slots=True)
class Samples:
    """The samples of every name, one a round, in the order in which names were first heard."""

    by_name: dict[str, list[Sample]] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, name: str, sample: Sample) -> Self:
        self.by_name.setdefault(name, []).append(sample)
        return self

    def skip(self, name: str, why: str) -> Self:
        self.skipped[name] = why
        return self

    def median(self, name: str, value: Callable[[Sample], float]) -> float | None:
        """The median over the rounds; None where there is nothing."""
        found = self.by_name.get(name)
        return statistics.median(map(value, found)) if found else None

    def ratio(self, name: str, other: str) -> float | None:
        """The median over the rounds of how many times as fast `name` is as `other`."""
        pairs = list(zip(self.by_name.get(name, ()), self.by_name.get(other, ()), strict=False))
        return statistics.median(ours.gb_per_s / theirs.gb_per_s for ours, theirs in pairs) if pairs else None

    def lines(self) -> list[str]:
        """A table, medians first."""
        head = (
            f"{'':34} {'GB/s':>7}  {'lowest':>7} {'highest':>7}  {'ms':>7}  {'peak beyond the runtime':>24}"
        )
        measured = [_line(name, found) for name, found in self.by_name.items()]
        return [head, *measured, *(f"{name:34} skipped: {why}" for name, why in self.skipped.items())]


def _line(name: str, found: list[Sample]) -> str:
    rates = sorted(sample.gb_per_s for sample in found)
    ms = statistics.median(sample.seconds for sample in found) * 1e3
    peaks = [sample.peak_bytes for sample in found if sample.peak_bytes is not None]
    peak = f"{statistics.median(peaks) / (1 << 20):.0f} MiB" if peaks else ""
    speeds = f"{statistics.median(rates):7.2f}  {rates[0]:7.2f} {rates[-1]:7.2f}"
    return f"{name:34} {speeds}  {ms:7.1f}  {peak:>24}  {found[-1].note}".rstrip()
