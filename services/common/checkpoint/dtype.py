"""Element types of stored tensors."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence


class DType(enum.StrEnum):
    """How an element lies in a file, little-endian."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8_E4M3 = "fp8_e4m3"  # no infinities, largest 448
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT4 = "int4"  # two's complement, two in a byte, the first in the low half

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def takes_scales(self) -> bool:
        """Whether a tensor of it may be quantised."""
        return self.bits <= 8

    @property
    def needs_scales(self) -> bool:
        """Whether its elements mean nothing without scales."""
        return self in {DType.INT8, DType.INT4}

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a contiguous tensor of `shape`."""
        return -(-math.prod(shape) * self.bits // 8)


_BITS = {
    DType.BF16: 16,
    DType.FP16: 16,
    DType.FP32: 32,
    DType.FP8_E4M3: 8,
    DType.FP8_E5M2: 8,
    DType.INT8: 8,
    DType.INT4: 4,
}
