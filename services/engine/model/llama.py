"""The Llama decoder (Touvron et al. 2023) over paged keys and values."""

from __future__ import annotations

import dataclasses

import torch

from services.common.checkpoint.architecture import Architecture
from services.engine.kernels.protocol import Kernels
from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; matrices are [out, in]."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor  # q, k, v rows one after the other
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # gate rows, then up rows
    down: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """All tensors, of one dtype; `head` is `embedding` where the two are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


class Llama:
    """A model that computes steps; it holds no state of requests.

    Args:
        architecture: Its shape and constants.
        max_positions: Most tokens of one sequence, at most the architecture's.
    """

    def __init__(
        self, architecture: Architecture, weights: LlamaWeights, kernels: Kernels, max_positions: int
    ) -> None:
        self.architecture = architecture
        self.max_positions = max_positions
        self.dtype = weights.embedding.dtype
        self.kv_shape = kernels.kv_shape(
            architecture.num_hidden_layers, architecture.num_key_value_heads, architecture.head_dim
        )
        self._weights = weights
        self._kernels = kernels
        self._rotary = Rotary.of(architecture.rope_theta, architecture.head_dim, max_positions)

    @property
    def block_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.kv_shape).numel()

    @torch.inference_mode()
    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        """Computes one step, storing keys and values in `blocks` ([blocks, *kv_shape]).

        Returns:
            Logits of the step's sample_rows, [rows, vocabulary], float32.
        """
        kernels, weights, eps = self._kernels, self._weights, self.architecture.rms_norm_eps
        attention = kernels.attention(
            step, blocks, self._rotary, self.architecture.num_attention_heads, self.architecture.head_dim
        )
        residual = kernels.embed(weights.embedding, torch.from_numpy(step.token_ids))
        for index, layer in enumerate(weights.layers):
            hidden = kernels.rms_norm(residual, layer.attention_norm, eps)
            mixed = attention(index, kernels.linear(hidden, layer.qkv))
            kernels.add_linear(residual, mixed, layer.output)
            hidden = kernels.rms_norm(residual, layer.mlp_norm, eps)
            gated = kernels.gated_silu(kernels.linear(hidden, layer.gate_up), self.dtype)
            kernels.add_linear(residual, gated, layer.down)
        sampled = residual[torch.from_numpy(step.sample_rows)]
        return kernels.linear(kernels.rms_norm(sampled, weights.norm, eps), weights.head)
