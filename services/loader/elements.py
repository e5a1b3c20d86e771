"""Elements of stored tensors as float32, and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.digest import Buffer
from services.common.checkpoint.dtype import DType
from services.loader.bfloat16 import to_bfloat16

FLOATS: Final = (DType.FP32, DType.BF16, DType.FP16)  # what weights may be stored in

_STORED: Final[dict[DType, Any]] = {DType.FP32: np.float32, DType.FP16: np.float16, DType.BF16: np.uint16}
_PRECISION_BITS: Final = {DType.FP32: 24, DType.BF16: 8, DType.FP16: 11}
_UNDERFLOW: Final = 1e-4
_LEAST: Final = {DType.FP32: 0.0, DType.BF16: 2.0**-134, DType.FP16: 2.0**-25}  # half the least subnormal


def to_float32(piece: Buffer, dtype: DType) -> npt.NDArray[np.float32]:
    """The elements of `piece`, flat; exact for every dtype."""
    stored = np.frombuffer(piece, _STORED[dtype])
    if dtype is DType.BF16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def from_float32(values: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[Any]:
    """`values` rounded to nearest even, as they lie in a file; what is too large becomes infinite."""
    if dtype is DType.BF16:
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        return values.astype(_STORED[dtype], copy=False)


def rounding(magnitudes: npt.NDArray[np.float32], source: DType, stored: DType) -> npt.NDArray[np.float32]:
    """By how much rounding alone may move values of these magnitudes: 0 where `stored` holds every `source`.

    What is below the least number of `stored` becomes zero. That counts as rounding only where it hardly matters:
    beside the largest of the magnitudes, by a ten-thousandth of it.
    """
    if stored in (source, DType.FP32):
        return np.zeros_like(magnitudes)
    unit = np.float32(2.0 ** -_PRECISION_BITS[stored])
    underflow = min(np.float32(_LEAST[stored]), magnitudes.max(initial=0) * np.float32(_UNDERFLOW))
    allowed: npt.NDArray[np.float32] = magnitudes * unit + underflow
    return allowed
