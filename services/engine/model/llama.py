"""The Llama decoder (Touvron et al. 2023), with Qwen2's biases where there are any, over paged keys and values."""

from __future__ import annotations

import torch

from services.common.checkpoint.architecture import Architecture
from services.engine.kernels.protocol import Operations
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LlamaWeights
from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged


class Llama:
    """See `Decoder`; in torch, of any set's operations.

    Args:
        architecture: Its shape and constants.
        weights: All tensors, of one dtype.
        kv: What keys and values are stored in.
        kernels: The operations.
        max_positions: Most tokens of one sequence, at most the architecture's.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: LlamaWeights,
        kv: KvFormat,
        kernels: Operations,
        max_positions: int,
    ) -> None:
        self.dtype = weights.embedding.dtype
        self.kv = kv
        self.architecture = architecture
        self.weights = weights
        self._kernels = kernels
        self._rotary = Rotary.of(architecture.rope_theta, architecture.head_dim, max_positions)

    @torch.inference_mode()
    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        """As `Decoder.forward`."""
        kernels, weights, eps = self._kernels, self.weights, self.architecture.rms_norm_eps
        heads = self.architecture.num_attention_heads
        attention = kernels.attention(step, blocks, self.kv, self._rotary, heads, dtype=self.dtype)
        residual = kernels.embed(weights.embedding, torch.from_numpy(step.token_ids))
        for index, layer in enumerate(weights.layers):
            hidden = kernels.rms_norm(residual, layer.attention_norm, eps)
            mixed = attention(index, kernels.linear(hidden, layer.qkv, layer.qkv_bias))
            kernels.add_linear(residual, mixed, layer.output)
            hidden = kernels.rms_norm(residual, layer.mlp_norm, eps)
            gated = kernels.gated_silu(kernels.linear(hidden, layer.gate_up), self.dtype)
            kernels.add_linear(residual, gated, layer.down)
        sampled = residual[torch.from_numpy(step.sample_rows)]
        return kernels.logits(kernels.rms_norm(sampled, weights.norm, eps), weights.head)
