"""What a decoder computes, declared: the graph of one step, from token ids to logits, without torch.

Matrices are [out, in]. The residual stream and the products are float32, what goes into a product has the
weights' dtype. Keys and values of earlier positions come with the attention's own cache.
"""

from __future__ import annotations

from typing import Final

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD, decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.graph import Attribute, Dimension, Graph, Node
from services.common.checkpoint.layout import TensorSpec

_ROWS: Final = "rows"  # tokens of a step
_SAMPLED: Final = "sampled"  # those of them whose logits are wanted


def decoder_graph(architecture: Architecture) -> Graph:
    """The graph; every weight is a node that bears its tensor's name, so one used twice is one node."""
    return _Drawing(architecture).draw()


class _Drawing:
    """A graph that grows from the tokens on."""

    def __init__(self, architecture: Architecture) -> None:
        self._arch = architecture
        self._tensors: dict[str, TensorSpec] = {spec.name: spec for spec in decoder_tensors(architecture)}
        self._nodes: dict[str, Node] = {}

    def draw(self) -> Graph:
        arch = self._arch
        tokens = self._add("tokens", "token_ids", dtype="int32", shape=(_ROWS,))
        residual = self._float("embed", "embed", (tokens, self._weight(EMBEDDING)), arch.hidden_size)
        for index in range(arch.num_hidden_layers):
            residual = self._layer(f"model.layers.{index}.", residual)
        wanted = self._add(
            "wanted", "sample_rows", (residual,), dtype=DType.FP32, shape=(_SAMPLED, arch.hidden_size)
        )
        normed = self._norm("model.norm.weight", wanted, _SAMPLED)
        head = self._weight(EMBEDDING if arch.tie_word_embeddings else HEAD)
        logits = self._add(
            "logits", "logits", (normed, head), dtype=DType.FP32, shape=(_SAMPLED, arch.vocab_size)
        )
        return Graph(self._nodes, logits)

    def _layer(self, prefix: str, residual: str) -> str:
        return self._mlp(prefix, self._attention(prefix, residual))

    def _attention(self, prefix: str, residual: str) -> str:
        arch = self._arch
        heads, kv_heads, size = arch.num_attention_heads, arch.num_key_value_heads, arch.head_dim
        mixed = self._add(
            f"{prefix}attention",
            "causal_attention",
            (self._qkv(prefix, self._norm(f"{prefix}input_layernorm.weight", residual, _ROWS)),),
            dtype=arch.dtype,
            shape=(_ROWS, heads * size),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            rope_theta=arch.rope_theta,
        )
        output = self._weight(f"{prefix}self_attn.o_proj.weight")
        return self._float(f"{prefix}attended", "add_linear", (residual, mixed, output), arch.hidden_size)

    def _qkv(self, prefix: str, normed: str) -> str:
        arch = self._arch
        columns = (arch.num_attention_heads + 2 * arch.num_key_value_heads) * arch.head_dim
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        weights = [self._weight(f"{name}.weight") for name in names]
        qkv = self._float(f"{prefix}qkv", "linear", (normed, *weights), columns)
        if not arch.has_qkv_bias:
            return qkv
        biases = [self._weight(f"{name}.bias") for name in names]
        return self._float(f"{prefix}qkv_biased", "add_bias", (qkv, *biases), columns)

    def _mlp(self, prefix: str, residual: str) -> str:
        arch = self._arch
        normed = self._norm(f"{prefix}post_attention_layernorm.weight", residual, _ROWS)
        names = [f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up")]
        gate_up = self._float(
            f"{prefix}gate_up", "linear", (normed, *map(self._weight, names)), 2 * arch.intermediate_size
        )
        gated = self._add(
            f"{prefix}gated",
            "gated_silu",
            (gate_up,),
            dtype=arch.dtype,
            shape=(_ROWS, arch.intermediate_size),
        )
        down = self._weight(f"{prefix}mlp.down_proj.weight")
        return self._float(f"{prefix}fed", "add_linear", (residual, gated, down), arch.hidden_size)

    def _norm(self, weight: str, residual: str, rows: str) -> str:
        arch = self._arch
        return self._add(
            f"{weight}:norm",
            "rms_norm",
            (residual, self._weight(weight)),
            dtype=arch.dtype,
            shape=(rows, arch.hidden_size),
            eps=arch.rms_norm_eps,
        )

    def _float(self, name: str, op: str, inputs: tuple[str, ...], columns: int) -> str:
        return self._add(name, op, inputs, dtype=DType.FP32, shape=(_ROWS, columns))

    def _weight(self, name: str) -> str:
        spec = self._tensors[name]
        return self._add(name, "weight", dtype=spec.dtype, shape=spec.shape, tensor=name)

    def _add(
        self,
        name: str,
        op: str,
        inputs: tuple[str, ...] = (),
        *,
        dtype: str,
        shape: tuple[Dimension, ...],
        **attributes: Attribute,
    ) -> str:
        self._nodes[name] = Node(op=op, inputs=inputs, attributes=attributes, dtype=str(dtype), shape=shape)
        return name
