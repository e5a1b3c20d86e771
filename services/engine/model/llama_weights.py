"""The tensors of a decoder of the Llama or Qwen2 family, in the places where it uses them."""

from __future__ import annotations

import dataclasses

import torch

from services.common.checkpoint.kernel_layout import KernelLayout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; matrices are [out, in], or packed as `LlamaWeights.layout` says."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor  # q, k, v rows one after the other
    qkv_bias: torch.Tensor | None  # one element for each row of qkv; None where the model has none
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # gate rows, then up rows
    down: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """All tensors, of one dtype; `head` is `embedding` where the two are tied and nothing is packed.

    Attributes:
        layout: How matrices lie; None: row after row. Packed are qkv, output, gate_up (a panel of gate's rows and one
            of up's in turn) and down of every layer, and the head, each [panels, pairs, 32, 2] and zero beyond its rows
            and columns; the embedding never is.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    layout: KernelLayout | None = None
