"""Where every tensor of a weight file lies: planned from names, shapes and fusion groups alone."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.quantisation import Quantisation

ALIGNMENT: Final = 4096


class Shard(enum.StrEnum):
    """How tensor-parallel ranks divide a tensor among them."""

    REPLICATED = "replicated"
    ROWS = "rows"  # along axis 0
    COLUMNS = "columns"  # along axis 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor before it has a place.

    Attributes:
        group: Tensors of one group lie back to back in the order given, so that a kernel sees one matrix;
            empty for a tensor that lies alone.
        quantisation: None for a tensor whose elements are its values.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    group: str = ""
    shard: Shard = Shard.REPLICATED
    quantisation: Quantisation | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor in its place: `offset` bytes from the start of the file, `nbytes` long, contiguous."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    group: str
    shard: Shard
    quantisation: Quantisation | None = None

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Storage(NamedTuple):
    """How weights are meant to be divided; the bytes are the same whatever it says.

    Attributes:
        block_rows: Rows of a weight that stay together: a tensor-parallel rank gets a multiple of it.
        tensor_parallel_size: The number of ranks that the tensors were checked to be divisible among.
    """

    block_rows: int = 1
    tensor_parallel_size: int = 1


UNDIVIDED: Final = Storage()


class Layout(NamedTuple):
    """Entries in the order of their offsets, and the length of the data that holds them."""

    entries: tuple[TensorEntry, ...]
    data_offset: int
    data_bytes: int


def align(value: int, unit: int) -> int:
    """The least multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit


def plan(specs: Iterable[TensorSpec], data_offset: int) -> Layout:
    """Lays the tensors out in the order given.

    A group, or a tensor alone, starts on 4 KiB; the data ends on 4 KiB, and on a whole block once it is
    longer than one, so that direct reads are always aligned.
    """
    entries: list[TensorEntry] = []
    end = data_offset
    for _, members in itertools.groupby(specs, key=lambda spec: spec.group or spec.name):
        end = align(end, ALIGNMENT)
        for entry in _back_to_back(members, end):
            entries.append(entry)
            end = entry.end
    return Layout(tuple(entries), data_offset, _padded(end - data_offset))


def _back_to_back(members: Iterable[TensorSpec], offset: int) -> Iterator[TensorEntry]:
    for spec in members:
        yield TensorEntry(
            name=spec.name,
            dtype=spec.dtype,
            shape=spec.shape,
            offset=offset,
            nbytes=spec.nbytes,
            group=spec.group,
            shard=spec.shard,
            quantisation=spec.quantisation,
        )
        offset += spec.nbytes


def _padded(length: int) -> int:
    return align(length, BLOCK_BYTES if length > BLOCK_BYTES else ALIGNMENT)
