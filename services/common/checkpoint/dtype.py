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

    @property
    def bits(self) -> int:
        return _BITS[self]

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a contiguous tensor of `shape`."""
        return -(-math.prod(shape) * self.bits // 8)


_BITS = {DType.BF16: 16, DType.FP16: 16, DType.FP32: 32}
