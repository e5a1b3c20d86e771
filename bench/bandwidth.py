"""``python -m bench.bandwidth --threads N``: what memory gives to N threads, in GB/s, at every line that it is told."""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import time
from typing import Final

import torch

_BYTES: Final = 1 << 30  # far more than any cache
_PASSES: Final = 9


class Probe:
    """Memory in huge pages, as the weights are, that is read from end to end."""

    def __init__(self, nbytes: int = _BYTES) -> None:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self._data = torch.frombuffer(memory, dtype=torch.float32)
        self._data.fill_(1)

    def gb_per_s(self, passes: int = _PASSES) -> float:
        """The median of some passes, after one that wakes the threads."""
        self._data.sum()
        return statistics.median(self._pass() for _ in range(passes))

    def _pass(self) -> float:
        began_s = time.perf_counter()
        self._data.sum()
        return self._data.nbytes / (time.perf_counter() - began_s) / 1e9


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    torch.set_num_threads(parser.parse_args(argv).threads)
    probe = Probe()
    print("ready", flush=True)
    while sys.stdin.readline():
        print(json.dumps({"gb_per_s": probe.gb_per_s()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
