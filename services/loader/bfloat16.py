"""float32 to bfloat16 without torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of finite float32 values, rounded to nearest, ties to even (IEEE 754, 4.3.1)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)
