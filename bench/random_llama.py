"""Random weights of a known shape, in memory, row after row and packed: what kernels are measured on."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.kernel_layout import PACKED32
from services.common.checkpoint.pack import Elements, pack, pack_gated
from services.engine.model.llama_weights import LayerWeights, LlamaWeights

_HUGE: Final = 2 << 20


def _shape(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int
) -> Architecture:
    return Architecture(
        model_type="llama",
        dtype=DType.BF16,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
    )


SHAPES: Final = {
    "tiny": _shape(128, 384, 2, 4, 2, 512),
    "small": _shape(576, 1536, 30, 9, 3, 49152),  # SmolLM2-135M
    "medium": _shape(2048, 5632, 22, 32, 4, 32000),  # TinyLlama-1.1B, but for its head, which is tied here
}


class _Maker:
    """Makes one model's tensors, one after the other."""

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self._random = np.random.default_rng(1)

    def norm(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    def numbers(self, rows: int, columns: int) -> Elements:
        """Small ones of either sign, as bits of bfloat16."""
        return self._random.integers(0, 1 << 16, (rows, columns), np.uint16) & np.uint16(0x807F) | np.uint16(
            0x3C80
        )

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        numbers = self.numbers(rows, columns)
        return in_huge_pages(pack(numbers) if self._packed else numbers)

    def gated(self, rows: int, columns: int) -> torch.Tensor:
        """Gate's rows and as many of up's."""
        numbers = self.numbers(2 * rows, columns)
        return in_huge_pages(pack_gated(numbers[:rows], numbers[rows:]) if self._packed else numbers)

    def layer(self, shape: Architecture) -> LayerWeights:
        hidden, heads = shape.hidden_size, shape.num_attention_heads
        queries, rows = heads * shape.head_dim, (heads + 2 * shape.num_key_value_heads) * shape.head_dim
        return LayerWeights(
            attention_norm=self.norm(hidden),
            qkv=self.matrix(rows, hidden),
            qkv_bias=None,
            output=self.matrix(hidden, queries),
            mlp_norm=self.norm(hidden),
            gate_up=self.gated(shape.intermediate_size, hidden),
            down=self.matrix(hidden, shape.intermediate_size),
        )


def random_weights(shape: Architecture, *, packed: bool) -> LlamaWeights:
    """The same numbers whether packed or row after row; head and embedding are the same matrix."""
    maker = _Maker(packed=packed)
    layers = tuple(maker.layer(shape) for _ in range(shape.num_hidden_layers))
    numbers = maker.numbers(shape.vocab_size, shape.hidden_size)
    embedding = in_huge_pages(numbers)
    head = in_huge_pages(pack(numbers)) if packed else embedding
    norm = maker.norm(shape.hidden_size)
    return LlamaWeights(
        embedding=embedding, layers=layers, norm=norm, head=head, layout=PACKED32 if packed else None
    )


def in_huge_pages(bits: Elements) -> torch.Tensor:
    """A copy, as bfloat16."""
    memory = mmap.mmap(-1, bits.nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    free = torch.frombuffer(memory, dtype=torch.int16)
    free = free[-free.data_ptr() % _HUGE // 2 :]
    copy = free[: bits.size].view(bits.shape)
    copy.numpy().view(np.uint16)[...] = bits
    return copy.view(torch.bfloat16)
