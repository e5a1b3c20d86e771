"""The Llama decoder as one call into C."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.engine.kernels.cpu.library import Layer, Model, Step
from services.engine.kernels.cpu.team import Team
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LayerWeights, LlamaWeights
from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged

_KV_KINDS: Final = {DType.BF16: 0, DType.FP32: 1, DType.FP16: 2, DType.INT8: 3}  # enum kv_kind of attention.h


class NativeLlama:
    """See `Decoder`; computes what `Llama` computes, in another order of summation.

    Not for two steps at once: it has one scratch, and one place for logits.

    Args:
        architecture: Its shape and constants.
        weights: Contiguous tensors of bfloat16 or float32, row after row, or of bfloat16 in PACKED32.
        kv: What keys and values are stored in.
        max_positions: Most tokens of one sequence.
        team: Threads that a step uses.
    """

    def __init__(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int, team: Team
    ) -> None:
        self.dtype = weights.embedding.dtype
        self.kv = kv
        self._team = team
        self.architecture = architecture
        self.weights = weights  # keeps alive what the pointers below point to
        self._rotary = Rotary.of(architecture.rope_theta, architecture.head_dim, max_positions)
        self._model = _model(architecture, weights, kv, self._rotary)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._logits = torch.empty(0, architecture.vocab_size)

    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        """As `Decoder.forward`."""
        described = _step(step, blocks)
        library, team = self._team.library, self._team.address
        needed = library.halogen_scratch_bytes(team, self._model, described)
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed, dtype=torch.uint8)  # torch aligns to 64 bytes
        if len(step.sample_rows) > len(self._logits):
            self._logits = torch.empty(len(step.sample_rows), self.architecture.vocab_size)
        library.halogen_step_llama(
            team, self._model, described, self._scratch.data_ptr(), self._logits.data_ptr()
        )
        return self._logits[: len(step.sample_rows)]


def _model(architecture: Architecture, weights: LlamaWeights, kv: KvFormat, rotary: Rotary) -> Model:
    layers = (Layer * len(weights.layers))(*map(_layer, weights.layers))
    return Model(
        embedding=weights.embedding.data_ptr(),
        norm=weights.norm.data_ptr(),
        head=weights.head.data_ptr(),
        layers=layers,
        cos=rotary.cos.data_ptr(),
        sin=rotary.sin.data_ptr(),
        layer_count=architecture.num_hidden_layers,
        hidden=architecture.hidden_size,
        intermediate=architecture.intermediate_size,
        heads=architecture.num_attention_heads,
        kv_heads=architecture.num_key_value_heads,
        head_dim=architecture.head_dim,
        vocabulary=architecture.vocab_size,
        is_bf16=weights.embedding.dtype == torch.bfloat16,
        is_packed=weights.layout is not None,
        kv_kind=_KV_KINDS[kv.dtype],
        kv_head_bytes=kv.head_bytes,
        eps=architecture.rms_norm_eps,
    )


def _layer(weights: LayerWeights) -> Layer:
    return Layer(
        attention_norm=weights.attention_norm.data_ptr(),
        qkv=weights.qkv.data_ptr(),
        qkv_bias=None if weights.qkv_bias is None else weights.qkv_bias.data_ptr(),
        output=weights.output.data_ptr(),
        mlp_norm=weights.mlp_norm.data_ptr(),
        gate_up=weights.gate_up.data_ptr(),
        down=weights.down.data_ptr(),
    )


def _step(step: Ragged, blocks: torch.Tensor) -> Step:
    return Step(
        token_ids=_address(step.token_ids),
        positions=_address(step.positions),
        rows=_address(step.rows),
        tables=_address(step.tables),
        sample_rows=_address(step.sample_rows),
        blocks=blocks.data_ptr(),
        block_bytes=blocks.stride(0),
        tokens=len(step.token_ids),
        sequences=len(step.rows) - 1,
        table_width=step.tables.shape[1],
        samples=len(step.sample_rows),
    )


def _address(array: npt.NDArray[np.int32]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
