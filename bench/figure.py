"""A figure that a benchmark promises, or merely tells."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number.

    Attributes:
        value: None where it could not be measured; `skipped` says why.
        goal: What it should be at least, or at most where lower is better; None where there is no promise.
    """

    name: str
    value: float | None
    unit: str
    goal: float | None = None
    better: Literal["higher", "lower"] = "higher"
    skipped: str = ""

    @property
    def verdict(self) -> str:
        """How it compares with its goal, in a word or two."""
        if self.value is None:
            return f"NOT MEASURED: {self.skipped}"
        if self.goal is None:
            return ""
        reached = self.value >= self.goal if self.better == "higher" else self.value <= self.goal
        bound = "at least" if self.better == "higher" else "at most"
        return f"{'reached' if reached else 'MISSED'}: {bound} {self.goal:g} {self.unit}"

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.2f} {self.unit}"
        return f"{self.name:32} {value:>16}   {self.verdict}".rstrip()


def write_figures(path: Path, figures: Sequence[Figure]) -> None:
    """Writes what ``--json`` promises."""
    path.write_text(json.dumps({"figures": [dataclasses.asdict(each) for each in figures]}, indent=2) + "\n")
