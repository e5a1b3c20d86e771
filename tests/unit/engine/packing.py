"""Weights packed in memory, for kernels that want them so: what a loader's derived file would hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.kernel_layout import PACKED32
from services.common.checkpoint.pack import Elements, pack, pack_gated
from services.engine.kernels.cpu.native_kernels import NativeKernels
from services.engine.kernels.cpu.native_llama import NativeLlama
from services.engine.kernels.cpu.team import Team
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LayerWeights, LlamaWeights


class PackingKernels(NativeKernels):
    """Packs matrices of bfloat16 before it uses them; its decoders still show the weights that they were given."""

    def decoder(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int
    ) -> NativeLlama:
        return _Packed(architecture, weights, kv, max_positions, self._team)


class _Packed(NativeLlama):
    def __init__(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int, team: Team
    ) -> None:
        self._packed = packed_weights(weights)
        super().__init__(architecture, self._packed, kv, max_positions, team)
        self.weights = weights


def packed_weights(weights: LlamaWeights) -> LlamaWeights:
    """The same in PACKED32, unless they are float32."""
    if weights.embedding.dtype != torch.bfloat16:
        return weights
    layers = tuple(map(_layer, weights.layers))
    return dataclasses.replace(weights, layers=layers, head=packed_matrix(weights.head), layout=PACKED32)


def packed_matrix(matrix: torch.Tensor) -> torch.Tensor:
    return _tensor(pack(_bits(matrix)))


def packed_gate_up(matrix: torch.Tensor) -> torch.Tensor:
    """Gate's rows and as many of up's."""
    gate, up = np.split(_bits(matrix), 2)
    return _tensor(pack_gated(gate, up))


def _layer(weights: LayerWeights) -> LayerWeights:
    return dataclasses.replace(
        weights,
        qkv=packed_matrix(weights.qkv),
        output=packed_matrix(weights.output),
        gate_up=packed_gate_up(weights.gate_up),
        down=packed_matrix(weights.down),
    )


def _bits(matrix: torch.Tensor) -> Elements:
    return matrix.contiguous().view(torch.int16).numpy().view(np.uint16)


def _tensor(packed: Elements) -> torch.Tensor:
    return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16)
