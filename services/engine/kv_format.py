"""What keys and values are stored in: the one place that says so, and how many bytes a block takes."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, Self

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.kv import BLOCK_TOKENS

KvChoice = Literal["auto", "bf16", "fp16", "int8"]

_SCALE_BYTES: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class KvFormat:
    """Blocks of 16 tokens, which have for every layer and key-value head the keys and the values of each token.

    A token's key, or value, for one head is head_dim elements, and in int8 a scale beside them, float32: an element
    is worth its number times the scale, and the greatest is 127. Where in a block each lies is the kernels' affair.

    Attributes:
        dtype: Of an element.
        layers: Of the decoder.
        kv_heads: Of a layer.
        head_dim: Elements of a head.
    """

    dtype: DType
    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, architecture: Architecture, choice: KvChoice, computed_in: DType) -> Self:
        """As an engine is told to store them.

        Args:
            architecture: Of the model.
            choice: auto stores them in what is computed in.
            computed_in: What the weights are used in.
        """
        dtype = computed_in if choice == "auto" else DType(choice)
        return cls(
            dtype, architecture.num_hidden_layers, architecture.num_key_value_heads, architecture.head_dim
        )

    @property
    def has_scales(self) -> bool:
        return self.dtype.needs_scales

    @property
    def elements_bytes(self) -> int:
        """Of the keys that a block has for one head of one layer, and of the values, without scales."""
        return self.dtype.nbytes((BLOCK_TOKENS, self.head_dim))

    @property
    def head_bytes(self) -> int:
        """The same with scales."""
        return self.elements_bytes + (BLOCK_TOKENS * _SCALE_BYTES if self.has_scales else 0)

    @property
    def heads(self) -> int:
        """Keys of one head of one layer, and values of one: how many of them a block has."""
        return self.layers * 2 * self.kv_heads

    @property
    def block_bytes(self) -> int:
        return self.heads * self.head_bytes
