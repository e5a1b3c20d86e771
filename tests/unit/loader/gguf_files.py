"""Small GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny_checkpoints import STORIES, TinyShape

SHAPE = TinyShape(num_hidden_layers=1, hidden_size=64, rms_norm_eps=1e-5)
Array = npt.NDArray[np.float32]

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
    "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
}

ROWS_OF_64 = [name for name in NAMES.values() if "norm" not in name and "down_proj" not in name]
UP_QUANTISED = {"model.layers.0.mlp.up_proj.weight": gguf.GGMLQuantizationType.Q8_0}


def random_values() -> dict[str, Array]:
    """Weights by Hugging Face name."""
    rng = np.random.default_rng(0)
    rows = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    rows |= {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
    rows |= {"embed_tokens": (512, 64), "lm_head": (512, 64)}
    shapes = {name: rows.get(name.split(".")[-2], (64,)) for name in NAMES.values()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def permute(rows: Array, heads: int) -> Array:
    """llama.cpp's order of q and k rows, written row by row: row i of a head's first half, then of its second."""
    half = rows.shape[0] // heads // 2
    order = [
        head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)
    ]
    return rows[order]


def write_gguf(
    path: Path,
    values: dict[str, Array],
    change: Callable[[gguf.GGUFWriter], object] = lambda _: None,
    *,
    kinds: Mapping[str, gguf.GGMLQuantizationType] = UP_QUANTISED,
    permuted: bool = True,
) -> Path:
    """A file as llama.cpp's converter writes it; up_proj is quantised unless `kinds` says otherwise."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SHAPE.num_hidden_layers)
    writer.add_context_length(SHAPE.max_position_embeddings)
    writer.add_embedding_length(SHAPE.hidden_size)
    writer.add_feed_forward_length(SHAPE.intermediate_size)
    writer.add_head_count(SHAPE.num_attention_heads)
    writer.add_head_count_kv(SHAPE.num_key_value_heads)
    writer.add_rope_freq_base(SHAPE.rope_theta)
    writer.add_layer_norm_rms_eps(SHAPE.rms_norm_eps)
    write_tokenizer(writer)
    change(writer)
    for name, hugging_face in NAMES.items():
        if hugging_face in values:
            value = permute_as_llama(name, values[hugging_face]) if permuted else values[hugging_face]
            write_tensor(writer, name, value, kinds.get(hugging_face))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(writer: gguf.GGUFWriter) -> None:
    model = json.loads((STORIES / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def permute_as_llama(name: str, value: Array) -> Array:
    heads = {
        "blk.0.attn_q.weight": SHAPE.num_attention_heads,
        "blk.0.attn_k.weight": SHAPE.num_key_value_heads,
    }
    return permute(value, heads[name]) if name in heads else value


def write_tensor(
    writer: gguf.GGUFWriter, name: str, value: Array, kind: gguf.GGMLQuantizationType | None
) -> None:
    if kind is None:
        writer.add_tensor(name, value)
    else:
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)


def write_qwen2(path: Path, values: dict[str, Array]) -> Path:
    """A file of the qwen2 family: q, k and v with biases, and no rows permuted."""

    def change(writer: gguf.GGUFWriter) -> None:
        for key in [key for key in writer.kv_data[0] if key.startswith("llama.")]:
            writer.kv_data[0][key.replace("llama.", "qwen2.")] = writer.kv_data[0].pop(key)
        replace(writer, "general.architecture", "qwen2")
        replace(writer, "tokenizer.ggml.pre", "qwen2")
        for part in "qkv":
            writer.add_tensor(f"blk.0.attn_{part}.bias", values[f"model.layers.0.self_attn.{part}_proj.bias"])

    return write_gguf(path, values, change, kinds={}, permuted=False)


def lengthen(path: Path) -> None:
    """The list of token types claims 2^62 of them."""
    content = write_gguf(path, random_values()).read_bytes()
    at = content.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    path.write_bytes(content[:at] + (1 << 62).to_bytes(8, "little") + content[at + 8 :])


def claim_tensors(path: Path) -> None:
    """The file claims 2^62 tensors."""
    content = write_gguf(path, random_values()).read_bytes()
    path.write_bytes(content[:8] + (1 << 62).to_bytes(8, "little") + content[16:])


def replace(writer: gguf.GGUFWriter, key: str, value: str | int) -> None:
    writer.kv_data[0][key].value = value
