"""Kernels that want packed weights and compute with what they unpack of them: the same bits as without a layout."""

from __future__ import annotations

import dataclasses

import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.kernel_layout import PACKED32
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Decoder
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LayerWeights, LlamaWeights
from services.engine.ragged import Ragged


class UnpackingKernels:
    """See `Kernels`."""

    name = "unpacking"
    layout = PACKED32

    def decoder(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int
    ) -> Decoder:
        plain = unpacked(architecture, weights) if weights.layout else weights
        return _Unpacking(PortableKernels().decoder(architecture, plain, kv, max_positions), weights)


class _Unpacking:
    """A decoder of plain weights that shows the packed ones."""

    def __init__(self, plain: Decoder, weights: LlamaWeights) -> None:
        self._plain = plain
        self.architecture, self.dtype, self.kv = plain.architecture, plain.dtype, plain.kv
        self.weights = weights

    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        return self._plain.forward(step, blocks)


def unpacked(architecture: Architecture, weights: LlamaWeights) -> LlamaWeights:
    """The same row after row, copied."""
    head = unpack(weights.head, architecture.vocab_size, architecture.hidden_size)
    layers = tuple(_layer(architecture, layer) for layer in weights.layers)
    return dataclasses.replace(weights, layers=layers, head=head, layout=None)


def unpack(packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Of [panels, pairs, 32, 2]: [rows, columns]."""
    panels, pairs, height, pair = packed.shape
    whole = packed.permute(0, 2, 1, 3).reshape(panels * height, pairs * pair)
    return whole[:rows, :columns].contiguous()


def _layer(architecture: Architecture, layer: LayerWeights) -> LayerWeights:
    hidden, wide = architecture.hidden_size, architecture.intermediate_size
    attended = architecture.num_attention_heads * architecture.head_dim
    qkv_rows = attended + 2 * architecture.num_key_value_heads * architecture.head_dim
    gate, up = (unpack(layer.gate_up[first::2], wide, hidden) for first in (0, 1))
    return dataclasses.replace(
        layer,
        qkv=unpack(layer.qkv, qkv_rows, hidden),
        output=unpack(layer.output, hidden, attended),
        gate_up=torch.cat((gate, up)),
        down=unpack(layer.down, hidden, wide),
    )
