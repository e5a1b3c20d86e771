"""Tensors that are stored more than once: found by their content, whatever their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorEntry
from services.loader.source_tensor import read_range

_FINGERPRINT_BYTES: Final = 64 << 10


def find_copies(weights: Path, header: Header) -> tuple[tuple[TensorEntry, ...], ...]:
    """Groups of tensors of equal dtype, shape and bytes.

    Beginnings are compared first, so that only tensors that are most likely equal are read in full.
    """
    likely = _grouped(weights, header.layout.entries, _FINGERPRINT_BYTES)
    return tuple(group for some in likely for group in _grouped(weights, some, None))


def describe(copies: Iterable[tuple[TensorEntry, ...]]) -> Iterator[str]:
    """A line for every group: who is equal, and the bytes that it costs."""
    for first, *others in copies:
        names = ", ".join(entry.name for entry in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        extra_bytes = sum(entry.nbytes for entry in others)
        yield f"redundant, {extra_bytes} bytes: {names}{more} (the same as {first.name})"


def _grouped(
    weights: Path, entries: Iterable[TensorEntry], most_bytes: int | None
) -> Iterator[tuple[TensorEntry, ...]]:
    groups = defaultdict(list)
    for entry in entries:
        groups[entry.dtype, entry.shape, _fingerprint(weights, entry, most_bytes)].append(entry)
    return (tuple(group) for group in groups.values() if len(group) > 1)


def _fingerprint(weights: Path, entry: TensorEntry, most_bytes: int | None) -> str:
    nbytes = min(entry.nbytes, most_bytes or entry.nbytes)
    pieces = read_range(weights, entry.name, entry.offset, nbytes)
    return "".join(sha256_hex(piece) for piece in pieces)
