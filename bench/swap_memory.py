"""What a system holds of memory between swaps, and whether that grows."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

_REGISTRY: Final = "etcd"
_Z_95: Final = 1.96  # two-sided, of the normal distribution


class Memory(NamedTuple):
    """One look: bytes by process, and of the loader's files.

    Of processes only what is theirs counts: pages of files, which are libraries, they share with others, whose coming and
    going would be seen. What lies in shared memory is the weights' alone, and counts once, in full, mapped or not.
    """

    by_name: Mapping[str, int]
    weights_bytes: int

    @classmethod
    def look(cls, pids: Mapping[str, int], weights: Path) -> Self:
        """Now.

        Args:
            pids: Of processes that are running, by name.
            weights: The tmpfs directory.
        """
        by_name = {name: _anonymous_bytes(pid) for name, pid in pids.items()}
        files = (path.stat() for path in weights.rglob("*") if path.is_file())
        return cls(by_name, sum(file.st_blocks * 512 for file in files))

    @property
    def parts(self) -> dict[str, int]:
        return {**self.by_name, "weights": self.weights_bytes}

    @property
    def total_bytes(self) -> int:
        """Without etcd, which keeps all that it was told for an hour."""
        return sum(held for name, held in self.parts.items() if name != _REGISTRY)


def _anonymous_bytes(pid: int) -> int:
    """Its anonymous memory."""
    (kib,) = re.findall(r"^Pss_Anon: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kib) << 10


class Slope(NamedTuple):
    """How much a row of figures rises from one to the next: the best guess, and what it is at least at 95 %."""

    value: float
    at_least: float


def slope(row: Sequence[float]) -> Slope:
    """Theil's and Sen's: the median slope of all pairs; its bound by Kendall's variance, as Sen (1968) has it."""
    slopes = sorted((b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(row), 2))
    count = len(row)
    spread = _Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = max(0, round((len(slopes) - spread) / 2))
    return Slope(statistics.median(slopes), slopes[lowest])


def furthest(row: Sequence[Memory], reference: Memory) -> float:
    """By what share of `reference` the largest look lies over it."""
    return max(each.total_bytes for each in row) / reference.total_bytes - 1
