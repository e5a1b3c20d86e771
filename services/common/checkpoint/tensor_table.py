"""The tensor table in the header's JSON, and the laws that its entries must obey."""

from __future__ import annotations

import itertools
from typing import Any, Final

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.layout import ALIGNMENT, Layout, Shard, TensorEntry
from services.common.checkpoint.quantisation import Quantisation, check_quantisation

MAX_RANK: Final = 8
MAX_NAME_CHARS: Final = 512


def encode_entry(entry: TensorEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "dtype": entry.dtype.value,
        "shape": list(entry.shape),
        "offset": entry.offset,
        "nbytes": entry.nbytes,
        "group": entry.group,
        "shard": entry.shard.value,
        "quantisation": entry.quantisation.to_fields() if entry.quantisation else None,
    }


def decode_entry(value: Any, where: str) -> TensorEntry:
    """Raises ValueError unless every field is there and within its bounds."""
    fields = Fields(value, where)
    quantisation = fields.take_or_none("quantisation", dict)
    entry = TensorEntry(
        name=fields.take("name", str),
        dtype=DType(fields.take("dtype", str)),
        shape=_decode_shape(fields.take("shape", list), where),
        offset=fields.take_count("offset"),
        nbytes=fields.take_count("nbytes"),
        group=fields.take("group", str),
        shard=Shard(fields.take("shard", str)),
        quantisation=None if quantisation is None else Quantisation.from_fields(quantisation, where),
    )
    fields.finish()
    return entry


def _decode_shape(value: list[Any], where: str) -> tuple[int, ...]:
    if len(value) > MAX_RANK or not all(type(size) is int and 1 <= size < 1 << 40 for size in value):
        raise ValueError(f"shape of {where} is not up to {MAX_RANK} positive sizes")
    return tuple(value)


def check_table(layout: Layout) -> None:
    """Raises ValueError, naming the tensor, unless the table is one that a reader may trust."""
    _check_names(layout.entries)
    for entry in layout.entries:
        _check_extent(entry, layout)
    for before, entry in itertools.pairwise(layout.entries):
        _check_order(before, entry)
    _check_groups(layout.entries)
    check_quantisation({entry.name: entry for entry in layout.entries})


def _check_names(entries: tuple[TensorEntry, ...]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not 1 <= len(entry.name) <= MAX_NAME_CHARS:
            raise ValueError(f"a tensor's name has {len(entry.name)} characters, not 1 to {MAX_NAME_CHARS}")
        if entry.name in seen:
            raise ValueError(f"tensor {entry.name} is there twice")
        seen.add(entry.name)


def _check_extent(entry: TensorEntry, layout: Layout) -> None:
    if entry.nbytes != entry.dtype.nbytes(entry.shape):
        raise ValueError(f"tensor {entry.name} has {entry.nbytes} bytes, not those of its shape and dtype")
    if entry.offset < layout.data_offset or entry.end > layout.data_offset + layout.data_bytes:
        raise ValueError(f"tensor {entry.name} lies outside the data")


def _check_order(before: TensorEntry, entry: TensorEntry) -> None:
    if entry.offset < before.end:
        raise ValueError(f"tensor {entry.name} overlaps {before.name}, or is out of order")
    if entry.group and entry.group == before.group and entry.offset != before.end:
        raise ValueError(f"tensor {entry.name} does not follow {before.name} of its group without a gap")


def _check_groups(entries: tuple[TensorEntry, ...]) -> None:
    seen: set[str] = set()
    for key, members in itertools.groupby(
        entries, key=lambda entry: (entry.group, entry.group or entry.name)
    ):
        first = next(members)
        if first.offset % ALIGNMENT:
            raise ValueError(f"tensor {first.name} does not start on {ALIGNMENT} bytes")
        if key[0] in seen:
            raise ValueError(f"group {key[0]} is in two places")
        if key[0]:
            seen.add(key[0])
