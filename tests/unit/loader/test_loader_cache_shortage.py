"""What a cache without room says: figures, and only what would help."""

from __future__ import annotations

import pytest

from services.common.checkpoint.cache_entry import CacheEntry
from services.loader.cache_shortage import Shortage

FREE = CacheEntry("a", 0, {1: 10})
PINNED = CacheEntry("b", 0, {2: 20}, is_pinned=True)
HELD = CacheEntry("c", 0, {3: 40}, is_held=True)
UNPIN, DISK = (
    "unpin what may go: halogen cache unpin",
    "free the disk, or give loaders a --cache-dir on a larger one",
)


@pytest.mark.parametrize(
    ("entries", "asked_bytes", "most_bytes", "remedies"),
    [
        ((), 99, 99, "start loaders with --cache-max-bytes 100 at least"),
        ((FREE,), 99, 99, "start loaders with --cache-max-bytes 100 at least"),
        ((FREE, HELD), 139, 139, "start loaders with --cache-max-bytes 140 at least"),
        ((PINNED, HELD), 120, 120, f"start loaders with --cache-max-bytes 160 at least, or {UNPIN}"),
        ((FREE,), 100, 100, DISK),
        ((FREE,), None, 54, DISK),
        ((PINNED,), None, 63, f"{DISK}, or {UNPIN}"),
    ],
)
def test_a_shortage_names_what_would_help(
    entries: tuple[CacheEntry, ...], asked_bytes: int | None, most_bytes: int, remedies: str
) -> None:
    """The bound that would do where the bound is what is short; unpinning where something is pinned.

    Fault injection: Shortage offers to unpin whatever is there.
    """
    text = Shortage.of(entries, 100, 50, asked_bytes).text
    assert text.startswith("no room in the artifact cache: 100 bytes are needed, 50 are free on its disk, ")
    assert f" of at most {most_bytes} are taken" in text
    assert text.endswith(f"; {remedies}")
