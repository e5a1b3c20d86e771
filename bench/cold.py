"""The state in which everybody's turn begins: nothing in the page cache, and free memory that costs no more than that."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import page_cache
from bench.warm_memory import warm

_TIMES: Final = 2  # what a reader may need of memory: the page cache's pages, and its own


def make_cold(*paths: Path) -> None:
    """Takes the files out of the page cache."""
    page_cache.drop(paths)
    warm(_TIMES * max(path.stat().st_size for path in paths))
