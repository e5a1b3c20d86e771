"""A source's tensor in another dtype, converted piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from services.common.checkpoint.dtype import DType
from services.common.errors import CorruptData, InvalidRequest
from services.loader.elements import from_float32, to_float32
from services.loader.source_tensor import SourceTensor


@dataclasses.dataclass(frozen=True, slots=True)
class RecastTensor:
    """`source`, each value rounded to the nearest of `dtype`."""

    source: SourceTensor
    dtype: DType

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def encoding(self) -> str:
        return self.source.encoding

    @property
    def stored_bytes(self) -> int:
        return self.source.stored_bytes

    def pieces(self) -> Iterator[memoryview]:
        """As `SourceTensor.pieces`.

        Raises:
            CorruptData: A value is NaN or infinite.
            InvalidRequest: A value is beyond the range of `dtype`.
        """
        for piece in self.source.pieces():
            values = to_float32(piece, self.source.dtype)
            if not np.isfinite(values).all():
                raise CorruptData(f"tensor {self.name} holds NaN or infinity; fetch the source again")
            stored = from_float32(values, self.dtype)
            if not np.isfinite(to_float32(stored.data.cast("B"), self.dtype)).all():
                raise InvalidRequest(
                    f"tensor {self.name} has values of up to {np.abs(values).max():.6g}, beyond the range of "
                    f"{self.dtype}; convert with --quant-policy fp32",
                    reason="OUT_OF_RANGE",
                )
            yield stored.data.cast("B")


def recast(tensor: SourceTensor, dtype: DType) -> SourceTensor:
    """`tensor` in `dtype`: itself where it is so already."""
    return tensor if tensor.dtype is dtype else RecastTensor(tensor, dtype)
