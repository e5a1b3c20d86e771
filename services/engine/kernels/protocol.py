"""The operations that a decoder needs, as every set of kernels offers them.

All of them are exact about order: a row of a result has the same bits whatever other rows are computed with
it, wherever it lies among them, and however its sequence was cut into chunks.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged


class Attention(Protocol):
    """One step's attention, laid out once for all layers."""

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Turns q and k by position, stores k and v in their blocks, attends to all that came before.

        Args:
            layer: From 0.
            qkv: [rows, (heads + 2 * kv_heads) * head_dim], as `linear` gives it.

        Returns:
            [rows, heads * head_dim] in the weights' dtype.
        """
        ...


class Kernels(Protocol):
    """A set of kernels.

    Matrices of weights are [out, in], row after row, in bfloat16 or float32 ("the weights' dtype"); they are
    read in place. Rows may be more than the step's tokens: what a set pads with, it ignores.

    Attributes:
        name: For logs and the runtime's build, for example "portable".
    """

    name: str

    def kv_shape(self, layers: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """The shape of one block of keys and values; its layout is the set's own affair."""
        ...

    def attention(
        self, step: Ragged, blocks: torch.Tensor, rotary: Rotary, heads: int, head_dim: int
    ) -> Attention:
        """Prepares one step.

        Args:
            step: What to compute.
            blocks: [blocks, *kv_shape] in the weights' dtype.
            rotary: Angles of at least the step's positions.
            heads: Query heads.
            head_dim: Elements of a head.
        """
        ...

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of `table` in float32: the residual stream [rows, hidden]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm (Zhang and Sennrich 2019), x / rms(x) * weight: from float32 into the weights' dtype."""
        ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The product x @ weight.T: from the weights' dtype into float32."""
        ...

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Adds x @ weight.T to `residual`, in place, in float32."""
        ...

    def gated_silu(self, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """SwiGLU (Shazeer 2020), silu(gate) * up: from float32 [rows, 2 * size] into `dtype` [rows, size]."""
        ...
