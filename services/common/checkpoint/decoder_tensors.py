"""The tensors of a decoder, declared: names, shapes, fusion groups and shard rules in the order they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import Shard, TensorSpec

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"


def decoder_tensors(arch: Architecture) -> tuple[TensorSpec, ...]:
    """Every tensor of the checkpoint, by its Hugging Face name; a tied head is not among them."""
    hidden, dtype = arch.hidden_size, arch.dtype
    vocabulary = (arch.vocab_size, hidden)
    specs = [TensorSpec(name=EMBEDDING, dtype=dtype, shape=vocabulary, shard=Shard.ROWS)]
    for index in range(arch.num_hidden_layers):
        specs += _layer(arch, f"model.layers.{index}.", dtype)
    specs.append(TensorSpec(name="model.norm.weight", dtype=dtype, shape=(hidden,)))
    if not arch.tie_word_embeddings:
        specs.append(TensorSpec(name=HEAD, dtype=dtype, shape=vocabulary, shard=Shard.ROWS))
    return tuple(specs)


def _layer(arch: Architecture, prefix: str, dtype: DType) -> Iterator[TensorSpec]:
    hidden, wide = arch.hidden_size, arch.intermediate_size
    q_rows, kv_rows = arch.num_attention_heads * arch.head_dim, arch.num_key_value_heads * arch.head_dim

    def tensor(
        name: str, *shape: int, group: str = "", shard: Shard = Shard.REPLICATED, kind: str = "weight"
    ) -> TensorSpec:
        group = prefix + group if group else ""
        return TensorSpec(name=f"{prefix}{name}.{kind}", dtype=dtype, shape=shape, group=group, shard=shard)

    yield tensor("input_layernorm", hidden)
    yield tensor("self_attn.q_proj", q_rows, hidden, group="qkv", shard=Shard.ROWS)
    yield tensor("self_attn.k_proj", kv_rows, hidden, group="qkv", shard=Shard.ROWS)
    yield tensor("self_attn.v_proj", kv_rows, hidden, group="qkv", shard=Shard.ROWS)
    if arch.has_qkv_bias:
        for part, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            yield tensor(f"self_attn.{part}_proj", rows, group="qkv_bias", shard=Shard.ROWS, kind="bias")
    yield tensor("self_attn.o_proj", hidden, q_rows, shard=Shard.COLUMNS)
    yield tensor("post_attention_layernorm", hidden)
    yield tensor("mlp.gate_proj", wide, hidden, group="gate_up", shard=Shard.ROWS)
    yield tensor("mlp.up_proj", wide, hidden, group="gate_up", shard=Shard.ROWS)
    yield tensor("mlp.down_proj", hidden, wide, shard=Shard.COLUMNS)
