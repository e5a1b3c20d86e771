"""A Hugging Face directory of a Llama in bf16 as one GGUF file, as llama.cpp reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open

from bench.checkpoints import Shape
from bench.made_tokenizer import MadeTokenizer


def write_gguf(path: Path, origin: Path, shape: Shape, tokenizer: MadeTokenizer) -> None:
    """Writes the file; matrices stay bf16, norms become float32, as llama.cpp's own converter has it."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape)
    _add_text(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.num_hidden_layers)
    with safe_open(origin / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # it is no mapping
            _add(
                writer,
                names.get_name(name, (".weight",)),
                _in_its_order(name, tensors.get_tensor(name), shape),
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, shape: Shape) -> None:
    writer.add_name("bench")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_rope_dimension_count(shape.hidden_size // shape.num_attention_heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)


def _add_text(writer: Any, tokenizer: MadeTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.tokens)
    ordinary = [gguf.TokenType.NORMAL] * (len(tokenizer.tokens) - 1)
    writer.add_token_types([gguf.TokenType.CONTROL, *ordinary])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def _in_its_order(name: str, tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """llama.cpp turns neighbouring elements of a head together, transformers those half a head apart."""
    heads = {"q_proj": shape.num_attention_heads, "k_proj": shape.num_key_value_heads}
    count = next((count for part, count in heads.items() if part in name), None)
    if count is None:
        return tensor
    halves = tensor.view(count, 2, -1, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _add(writer: Any, name: str | None, tensor: torch.Tensor) -> None:
    assert name, "a Llama's tensors all have a name in GGUF"
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.to(torch.float32).numpy())
        return
    data: np.ndarray[Any, Any] = tensor.contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
