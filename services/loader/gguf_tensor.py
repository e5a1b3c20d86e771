"""A tensor of a GGUF file: read, dequantised and brought into Hugging Face's row order a few rows at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

from services.common.checkpoint.dtype import DType
from services.loader.source_tensor import PIECE_BYTES, all_finite, read_range

PLAIN: Final = {Type.F32: DType.FP32, Type.F16: DType.FP16, Type.BF16: DType.BF16}
QUANTISED: Final = frozenset(
    {
        *(Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0),
        *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K),
    }
)

_ITEMS: Final[dict[DType, Any]] = {DType.FP32: np.float32, DType.FP16: np.float16, DType.BF16: np.uint16}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One stored tensor.

    Attributes:
        heads: What its rows were permuted by, 0 for none.
        kind: How its elements are stored; one of PLAIN or QUANTISED.
        offset: Of its bytes in the file, `stored_bytes` long.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    heads: int
    kind: Any  # gguf.GGMLQuantizationType
    offset: int
    stored_bytes: int

    @property
    def dtype(self) -> DType:
        return PLAIN.get(self.kind, DType.FP32)

    @property
    def encoding(self) -> str:
        return str(self.kind.name) if self.kind in QUANTISED else ""

    @property
    def grain(self) -> int:
        """A head where rows are permuted, else a row."""
        return self._unit * self.shape[-1]

    @property
    def _rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def _unit(self) -> int:
        """How many rows stay together."""
        return self._rows // self.heads if self.heads else 1

    def pieces(self) -> Iterator[memoryview]:
        """The weights in Hugging Face's row order, whole grains at a time."""
        return self.stretch(0, math.prod(self.shape))

    def stretch(self, begin: int, end: int) -> Iterator[memoryview]:
        return all_finite(self, self._read(begin // self.shape[-1], end // self.shape[-1]), begin)

    def _read(self, first: int, end: int) -> Iterator[memoryview]:
        """Rows `first` to `end`."""
        unit, row_bytes = self._unit, self.stored_bytes // self._rows
        count = unit * max(PIECE_BYTES // DType.FP32.nbytes((self.grain,)), 1)
        offset, nbytes = self.offset + first * row_bytes, (end - first) * row_bytes
        for piece in read_range(self.path, self.name, offset, nbytes, count * row_bytes):
            values = self._decode(np.frombuffer(piece, np.uint8).reshape(-1, row_bytes))
            heads = values.shape[0] // unit
            yield np.ascontiguousarray(unpermute(values, heads) if self.heads else values).data.cast("B")

    def _decode(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        if self.encoding:
            values: npt.NDArray[Any] = dequantize(rows, self.kind)
            return values.astype(np.float32, copy=False)
        return rows.view(_ITEMS[self.dtype])


def unpermute(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undoes llama.cpp's order of q and k rows.

    There the two halves of each head that rotate together are interleaved (ggml-org/llama.cpp,
    convert_hf_to_gguf.py, LlamaModel.permute); Hugging Face keeps one half after the other.

    Args:
        rows: [heads * head_dim, columns].
        heads: How many heads the rows belong to.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
