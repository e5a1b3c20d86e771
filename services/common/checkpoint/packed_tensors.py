"""The tensors of a decoder in PACKED32, declared: what each is made of, in the order they are stored."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD, decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.kernel_layout import packed_shape
from services.common.checkpoint.layout import TensorSpec

PACKED_HEAD: Final = "lm_head.packed"


class Making(enum.Enum):
    """What becomes of the tensors that a packed one is made of."""

    AS_IT_IS = enum.auto()
    STACKED = enum.auto()  # packed, the rows of one after those of the other
    INTERLEAVED = enum.auto()  # packed each, then a panel of each in turn


class PackedTensor(NamedTuple):
    """A tensor of the packed file, and the names of those that it is made of."""

    spec: TensorSpec
    sources: tuple[str, ...]
    making: Making = Making.AS_IT_IS


def packed_tensors(arch: Architecture) -> tuple[PackedTensor, ...]:
    """Every tensor; the embedding is there row after row, since its rows are looked up, also where it is the head."""
    stored = {spec.name: spec for spec in decoder_tensors(arch)}
    tensors = [PackedTensor(stored[EMBEDDING], (EMBEDDING,))]
    for index in range(arch.num_hidden_layers):
        tensors += _layer(stored, f"model.layers.{index}.")
    norm = "model.norm.weight"
    head = stored[EMBEDDING if arch.tie_word_embeddings else HEAD]
    return (*tensors, PackedTensor(stored[norm], (norm,)), _packed(PACKED_HEAD, (head,)))


def _layer(stored: dict[str, TensorSpec], prefix: str) -> Iterator[PackedTensor]:
    def as_it_is(name: str) -> PackedTensor:
        return PackedTensor(stored[prefix + name], (prefix + name,))

    def packed(name: str, *parts: str, making: Making = Making.STACKED) -> PackedTensor:
        sources = tuple(stored[f"{prefix}{part}.weight"] for part in parts)
        return _packed(f"{prefix}{name}.packed", sources, making)

    yield as_it_is("input_layernorm.weight")
    yield packed("self_attn.qkv_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    for part in "qkv":
        if f"{prefix}self_attn.{part}_proj.bias" in stored:
            yield as_it_is(f"self_attn.{part}_proj.bias")
    yield packed("self_attn.o_proj", "self_attn.o_proj")
    yield as_it_is("post_attention_layernorm.weight")
    yield packed("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj", making=Making.INTERLEAVED)
    yield packed("mlp.down_proj", "mlp.down_proj")


def _packed(name: str, sources: tuple[TensorSpec, ...], making: Making = Making.STACKED) -> PackedTensor:
    rows, columns = [spec.shape[0] for spec in sources], sources[0].shape[1]
    shape = packed_shape(sum(rows) if making is Making.STACKED else rows[0], columns)
    if making is Making.INTERLEAVED:
        shape = (len(sources) * shape[0], *shape[1:])
    spec = TensorSpec(name=name, dtype=DType.BF16, shape=shape)
    return PackedTensor(spec, tuple(each.name for each in sources), making)
