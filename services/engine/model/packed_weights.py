"""The tensors of a file in a kernel's layout, bound to the places where the decoder uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING
from services.common.checkpoint.derivation import Derivation
from services.common.checkpoint.header import Header
from services.common.checkpoint.packed_tensors import PACKED_HEAD, packed_tensors
from services.common.errors import Cancelled, CorruptData
from services.engine.model.llama_weights import LayerWeights, LlamaWeights


def check_packed(header: Header, architecture: Architecture) -> None:
    """Raises CorruptData unless the tensors are exactly those of such a decoder, packed."""
    expected = {tensor.spec.name: tensor.spec.shape for tensor in packed_tensors(architecture)}
    found = {entry.name: entry.shape for entry in header.layout.entries}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            _refuse(f"tensor {name} has shape {found.get(name)}, config.json says {expected.get(name)}")


class PackedBinder:
    """Views of one mapping; nothing is copied.

    Args:
        mapped: The whole file, [bytes] of uint8, never written to.
        header: Its header, checked.
        derived: What that says of the file.
        stop: Calls it off between two tensors.
        rest: Called after every tensor.
    """

    def __init__(
        self,
        mapped: torch.Tensor,
        header: Header,
        derived: Derivation,
        stop: threading.Event,
        rest: Callable[[], None],
    ) -> None:
        self._mapped = mapped
        self._tensors = header.tensors
        self._layout = derived.layout
        self._stop = stop
        self._rest = rest

    def bind(self, architecture: Architecture) -> LlamaWeights:
        return LlamaWeights(
            embedding=self._view(EMBEDDING),
            layers=tuple(
                self._layer(f"model.layers.{i}.", has_qkv_bias=architecture.has_qkv_bias)
                for i in range(architecture.num_hidden_layers)
            ),
            norm=self._view("model.norm.weight"),
            head=self._view(PACKED_HEAD),
            layout=self._layout,
        )

    def _layer(self, prefix: str, *, has_qkv_bias: bool) -> LayerWeights:
        return LayerWeights(
            attention_norm=self._view(f"{prefix}input_layernorm.weight"),
            qkv=self._view(f"{prefix}self_attn.qkv_proj.packed"),
            qkv_bias=self._biases(prefix) if has_qkv_bias else None,
            output=self._view(f"{prefix}self_attn.o_proj.packed"),
            mlp_norm=self._view(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._view(f"{prefix}mlp.gate_up_proj.packed"),
            down=self._view(f"{prefix}mlp.down_proj.packed"),
        )

    def _biases(self, prefix: str) -> torch.Tensor:
        """Of q, k and v, which lie back to back."""
        first, *_, last = (self._tensors[f"{prefix}self_attn.{part}_proj.bias"] for part in "qkv")
        return self._mapped[first.offset : last.end].view(torch.bfloat16)

    def _view(self, name: str) -> torch.Tensor:
        if self._stop.is_set():
            raise Cancelled("the load was called off")
        entry = self._tensors[name]
        view = self._mapped[entry.offset : entry.end].view(torch.bfloat16).view(entry.shape)
        self._rest()
        return view


def _refuse(what: str) -> NoReturn:
    raise CorruptData(f"packed weights: {what}; prepare the artifact again", reason="TENSORS_MISMATCH")
