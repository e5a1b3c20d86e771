"""What models are computed with: a set of kernels makes decoders; sets in torch share one decoder's operations.

All results are exact about order: a row has the same bits whatever other rows are computed with it, wherever
it lies among them, and however its sequence was cut into chunks.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.kernel_layout import KernelLayout
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LlamaWeights
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


class Operations(Protocol):
    """What the decoder in model/llama.py is made of.

    Matrices of weights are [out, in], row after row, in bfloat16 or float32 ("the weights' dtype"); they are
    read in place. Rows may be more than the step's tokens: what a set pads with, it ignores.
    """

    def attention(
        self,
        step: Ragged,
        blocks: torch.Tensor,
        kv: KvFormat,
        rotary: Rotary,
        heads: int,
        *,
        dtype: torch.dtype,
    ) -> Attention:
        """Prepares one step.

        Args:
            step: What to compute.
            blocks: [blocks, kv.block_bytes] of uint8; how they are laid out is the set's own affair.
            kv: What keys and values are stored in.
            rotary: Angles of at least the step's positions.
            heads: Query heads.
            dtype: Of the weights.
        """
        ...

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of `table` in float32: the residual stream [rows, hidden]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm (Zhang and Sennrich 2019), x / rms(x) * weight: from float32 into the weights' dtype."""
        ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product x @ weight.T, plus `bias` [out] if there is one: from the weights' dtype into float32."""
        ...

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As `linear`, and the largest of each row to float32's precision, whatever the weights' dtype."""
        ...

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Adds x @ weight.T to `residual`, in place, in float32."""
        ...

    def gated_silu(self, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """SwiGLU (Shazeer 2020), silu(gate) * up: from float32 [rows, 2 * size] into `dtype` [rows, size]."""
        ...


class Decoder(Protocol):
    """A model that computes steps; it holds no state of requests.

    Attributes:
        architecture: The shape and constants that it computes with.
        weights: The tensors that it computes with.
        dtype: Of the weights.
        kv: What keys and values are stored in; how blocks are laid out is the decoder's own affair.
    """

    @property
    def architecture(self) -> Architecture: ...

    @property
    def weights(self) -> LlamaWeights: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def kv(self) -> KvFormat: ...

    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        """Computes one step, storing keys and values in `blocks` ([blocks, kv.block_bytes] of uint8).

        Returns:
            Logits of the step's sample_rows, [rows, vocabulary], float32; good until the next step.
        """
        ...


class Kernels(Protocol):
    """A set of kernels.

    Attributes:
        name: For logs and the runtime's build, for example "portable".
        layout: How it wants bfloat16 matrices to lie, though it computes with them as they are stored, too; None: so.
    """

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> KernelLayout | None: ...

    def decoder(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int
    ) -> Decoder:
        """Makes a decoder that uses the weights in place.

        Args:
            architecture: Its shape and constants.
            weights: All tensors, of one dtype.
            kv: What to store keys and values in.
            max_positions: Most tokens of one sequence, at most the architecture's.
        """
        ...
