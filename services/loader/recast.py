"""A source's tensor in another dtype, converted piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.finite import first_not_finite
from services.common.errors import InvalidRequest
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

    @property
    def grain(self) -> int:
        return self.source.grain

    def pieces(self) -> Iterator[memoryview]:
        """As `SourceTensor.pieces`.

        Raises:
            InvalidRequest: A value is beyond the range of `dtype`.
        """
        return self._round(self.source.pieces())

    def stretch(self, begin: int, end: int) -> Iterator[memoryview]:
        return self._round(self.source.stretch(begin, end))

    def _round(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            values = to_float32(piece, self.source.dtype)
            stored = from_float32(values, self.dtype)
            if first_not_finite(stored.data.cast("B"), self.dtype) is not None:
                raise InvalidRequest(
                    f"tensor {self.name} has values of up to {np.abs(values).max():.6g}, beyond the range of "
                    f"{self.dtype}; convert with --quant-policy fp32",
                    reason="OUT_OF_RANGE",
                )
            yield stored.data.cast("B")


def is_exact(tensor: SourceTensor, dtype: DType) -> bool:
    """Whether `dtype` has every value of `tensor`."""
    return all(_survives(to_float32(piece, tensor.dtype), dtype) for piece in tensor.pieces())


def _survives(values: npt.NDArray[np.float32], dtype: DType) -> bool:
    return np.array_equal(values, to_float32(from_float32(values, dtype).data.cast("B"), dtype))


def recast(tensor: SourceTensor, dtype: DType) -> SourceTensor:
    """`tensor` in `dtype`: itself where it is so already."""
    return tensor if tensor.dtype is dtype else RecastTensor(tensor, dtype)
