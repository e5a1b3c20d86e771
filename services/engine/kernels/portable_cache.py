"""Keys and values as the portable kernels lay them out in blocks."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch

from services.common.checkpoint.dtype import DType
from services.common.kv import BLOCK_TOKENS
from services.engine.kv_format import KvFormat

_TORCH: Final = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
    DType.INT8: torch.int8,
}
_MOST_INT8: Final = 127


class PortableCache:
    """A block is its elements, [layers, key or value, kv_heads, token, head_dim], and then its scales, without the last.

    Args:
        blocks: [blocks, kv.block_bytes] of uint8.
        kv: What they hold.
    """

    def __init__(self, blocks: torch.Tensor, kv: KvFormat) -> None:
        shape = (len(blocks), kv.layers, 2, kv.kv_heads, BLOCK_TOKENS)
        split = kv.heads * kv.elements_bytes
        self.kv = kv
        self._elements = blocks[:, :split].view(_TORCH[kv.dtype]).view(*shape, kv.head_dim)
        self._scales = blocks[:, split:].view(torch.float32).view(*shape) if kv.has_scales else None

    def layer(self, index: int) -> CachedLayer:
        """Layer `index`, from 0."""
        scales = None if self._scales is None else self._scales[:, index]
        return CachedLayer(self._elements[:, index], scales)


@dataclasses.dataclass(frozen=True, slots=True)
class CachedLayer:
    """Elements [blocks, key or value, kv_heads, token, head_dim]; scales, if any, without the last."""

    elements: torch.Tensor
    scales: torch.Tensor | None

    def store(
        self, blocks: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Stores a step's.

        Args:
            blocks: [tokens], where each token's go.
            slots: [tokens], which token of its block each is.
            keys: [tokens, kv_heads, head_dim], float32.
            values: The same.
        """
        for which, x in enumerate((keys, values)):
            if self.scales is None:
                self.elements[blocks, which, :, slots] = x.to(self.elements.dtype)
            else:
                elements, scales = _quantised(x)
                self.elements[blocks, which, :, slots] = elements
                self.scales[blocks, which, :, slots] = scales

    def gather(self, tables: torch.Tensor) -> torch.Tensor:
        """What blocks [tiles, n] hold: [tiles, n, key or value, kv_heads, token, head_dim], float32."""
        held = self.elements[tables].float()
        return held if self.scales is None else held * self.scales[tables][..., None]


def _quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements and scales, the greatest of a head as 127; a scale is not finite if an element is not."""
    scales = x.abs().amax(-1) / _MOST_INT8
    times = torch.where(scales > 0, 1 / scales, 0)
    return (x * times[..., None]).round_().to(torch.int8), scales
