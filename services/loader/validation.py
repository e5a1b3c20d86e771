"""Stored weights compared with their source, value by value: by another way than they were written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from services.common.checkpoint.conversion_options import Validation
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorEntry
from services.common.checkpoint.writer import Progress
from services.common.errors import CorruptData
from services.loader.elements import rounding, to_float32
from services.loader.sampling import sampled_stretches
from services.loader.source_tensor import PIECE_BYTES, SourceTensor, read_range

TOLERANCE: Final = 1e-4

_SAMPLED_BYTES: Final = PIECE_BYTES  # of each tensor, as its source gives it


class Deviation(NamedTuple):
    """How far a stored tensor is from its source.

    Attributes:
        excess: The largest |stored - source| / |source|, less what rounding to the stored dtype explains.
    """

    tensor: str
    excess: float

    def __str__(self) -> str:
        return f"{self.tensor}, {self.excess:.3g} relative beyond rounding"


def validate(
    sources: Mapping[str, SourceTensor],
    weights: Path,
    header: Header,
    extent: Validation,
    progress: Progress = lambda _done, _total: None,
) -> Deviation | None:
    """Compares every tensor, or stretches of every tensor from its beginning to its end; needs memory for a few pieces.

    Args:
        sources: The tensors as the source has them, by name.
        weights: The stored file.
        header: Its header.
        extent: How much is compared; None is returned where it is nothing.
        progress: Told of the stored bytes.

    Returns:
        The worst tensor.

    Raises:
        CorruptData: A tensor is further off than TOLERANCE; the message names it.
    """
    if extent is Validation.NONE:
        return None
    worst, done_bytes = Deviation("", -1.0), 0
    for entry in header.layout.entries:
        found = Deviation(entry.name, _excess(sources[entry.name], weights, entry, extent))
        if not found.excess <= TOLERANCE:
            raise CorruptData(
                f"validation failed: tensor {found}, the most is {TOLERANCE:g}; convert the source again, or where its "
                "values are too small for what they are stored in, with --quant-policy bf16",
                reason="VALIDATION_FAILED",
            )
        worst = max(worst, found, key=lambda deviation: deviation.excess)
        done_bytes += entry.nbytes
        progress(done_bytes, header.data_bytes)
    progress(header.data_bytes, header.data_bytes)
    return worst


def _excess(source: SourceTensor, weights: Path, entry: TensorEntry, extent: Validation) -> float:
    worst = 0.0
    for begin, piece in _pieces(source, extent):
        count = len(piece) * 8 // source.dtype.bits
        offset, nbytes = entry.offset + entry.dtype.nbytes((begin,)), entry.dtype.nbytes((count,))
        for stored in read_range(weights, entry.name, offset, nbytes, nbytes):
            worst = max(worst, _largest(stored, entry.dtype, piece, source.dtype))
    return worst


def _pieces(source: SourceTensor, extent: Validation) -> Iterator[tuple[int, memoryview]]:
    """What is compared of a tensor: where each piece begins, in elements, and the piece."""
    if extent is Validation.FULL:
        yield from _placed(0, source.pieces(), source.dtype)
        return
    elements, most = math.prod(source.shape), _SAMPLED_BYTES * 8 // source.dtype.bits
    for stretch in sampled_stretches(elements, source.grain, most):
        yield from _placed(stretch.start, source.stretch(stretch.start, stretch.stop), source.dtype)


def _placed(begin: int, pieces: Iterator[memoryview], dtype: DType) -> Iterator[tuple[int, memoryview]]:
    for piece in pieces:
        yield begin, piece
        begin += len(piece) * 8 // dtype.bits


def _largest(stored: memoryview, stored_in: DType, piece: memoryview, given_in: DType) -> float:
    """The largest relative difference beyond rounding; infinite where zero is not zero, or a NaN appears."""
    if stored_in is given_in and bytes(stored) == bytes(piece):  # views compare item by item
        return 0.0
    found, wanted = to_float32(stored, stored_in), to_float32(piece, given_in)
    magnitudes = np.abs(wanted)
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.abs(found - wanted) - rounding(magnitudes, given_in, stored_in)
        relative = np.where(beyond > 0, beyond / magnitudes, 0)
    return float("inf") if np.isnan(beyond).any() else float(relative.max())
