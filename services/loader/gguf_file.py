"""A GGUF file of the llama family, seen as a Hugging Face checkpoint: names, shapes, values, configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.checkpoint.layout import TensorSpec
from services.common.errors import CorruptData, InvalidRequest, NotFound, Unsupported
from services.loader.bfloat16 import to_bfloat16

_OUTER: Final = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


class GgufTensor(NamedTuple):
    """One stored tensor; `heads` is what its rows were permuted by, 0 for none."""

    name: str
    shape: tuple[int, ...]
    heads: int
    stored: Any  # gguf.ReaderTensor

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(name=self.name, dtype=DType.BF16, shape=self.shape)

    def values(self) -> npt.NDArray[np.float32]:
        """The weights as float32 in Hugging Face's row order."""
        values = dequantize(self.stored.data, self.stored.tensor_type).astype(np.float32, copy=False)
        values = values.reshape(self.shape)
        return unpermute(values, self.heads) if self.heads else values

    def content(self) -> memoryview:
        """The weights as bf16 bytes.

        Raises:
            CorruptData: They are not all finite.
        """
        values = self.values()
        if not np.isfinite(values).all():
            raise CorruptData(f"tensor {self.name} holds NaN or infinity; fetch the file again")
        return to_bfloat16(values).data.cast("B")


def unpermute(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undoes llama.cpp's order of q and k rows.

    There the two halves of each head that rotate together are interleaved (ggml-org/llama.cpp,
    convert_hf_to_gguf.py, LlamaModel.permute); Hugging Face keeps one half after the other.

    Args:
        rows: [heads * head_dim, columns].
        heads: How many heads the rows belong to.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


class GgufFile:
    """An opened file.

    Raises:
        NotFound: There is no such file.
        InvalidRequest: It is no GGUF file.
        CorruptData: It is truncated or ill-formed.
        Unsupported: Another architecture than llama.
    """

    def __init__(self, path: Path) -> None:
        _check_start(path)
        try:
            reader = GGUFReader(path)
            self.metadata: Mapping[str, Any] = {
                name: field.contents() for name, field in reader.fields.items()
            }
        except (ValueError, KeyError, IndexError) as fault:
            raise CorruptData(f"{path.name}: not a whole GGUF file ({fault}); fetch it again") from None
        if (found := self.metadata.get("general.architecture")) != "llama":
            raise Unsupported(
                f"{path.name} holds a {found!r} model; this build reads 'llama'",
                reason="ARCHITECTURE_UNSUPPORTED",
            )
        self.tensors = tuple(self._describe(stored) for stored in reader.tensors)

    def config(self) -> dict[str, Any]:
        """Hugging Face's config.json.

        Raises:
            Unsupported: Rotary positions are scaled.
            CorruptData: A field is missing.
        """
        if self.metadata.get("llama.rope.scaling.type", "none") != "none":
            raise Unsupported("rotary positions are scaled; this build serves unscaled ones only")
        hidden, heads = self._take("embedding_length"), self._take("attention.head_count")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self._take("feed_forward_length"),
            "num_hidden_layers": self._take("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._take("attention.head_count_kv", heads),
            "head_dim": self._take("attention.key_length", hidden // heads),
            "max_position_embeddings": self._take("context_length"),
            "rope_theta": self._take("rope.freq_base", 10_000.0),
            "rope_scaling": None,
            "rms_norm_eps": round(self._take("attention.layer_norm_rms_epsilon"), 10),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": all(tensor.name != HEAD for tensor in self.tensors),
            "vocab_size": len(self.metadata["tokenizer.ggml.tokens"]),
            "torch_dtype": "bfloat16",
            **self.special_ids(),
        }

    def special_ids(self) -> dict[str, Any]:
        """bos, eos and pad ids; eos is a list where a turn ends otherwise than a text."""
        keys = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
        ids: dict[str, Any] = {
            name: self.metadata[f"tokenizer.ggml.{key}"]
            for name, key in keys.items()
            if f"tokenizer.ggml.{key}" in self.metadata
        }
        ends = [self.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
        distinct = sorted({end for end in ends if end is not None})
        if distinct:
            ids["eos_token_id"] = distinct[0] if len(distinct) == 1 else distinct
        return ids

    def contents(self) -> Iterator[memoryview]:
        for tensor in self.tensors:
            yield tensor.content()

    def _take(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"llama.{key}", default)
        if value is None:
            raise CorruptData(f"the GGUF file says nothing of llama.{key}; fetch it again")
        return value

    def _describe(self, stored: Any) -> GgufTensor:
        heads = {"attn_q": self._take("attention.head_count")}
        heads["attn_k"] = self._take("attention.head_count_kv", heads["attn_q"])
        name, kind = _hugging_face_name(stored.name)
        shape = tuple(int(size) for size in reversed(stored.shape))
        return GgufTensor(name, shape, heads.get(kind, 0), stored)


def _hugging_face_name(name: str) -> tuple[str, str]:
    """The tensor's Hugging Face name and, for those of a layer, its kind."""
    if name in _OUTER:
        return _OUTER[name], ""
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        raise Unsupported(
            f"tensor {name} has no place in a plain llama decoder", reason="ARCHITECTURE_UNSUPPORTED"
        )
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.weight", match[2]


def _check_start(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"{path.name}: no such file")
    with path.open("rb") as file:
        if (found := recognise(file.read(RECOGNISED_BYTES))) is not FileFormat.GGUF:
            raise InvalidRequest(f"{path.name} is not a GGUF file ({found})", reason="WRONG_FORMAT")
