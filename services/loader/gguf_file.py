"""A GGUF file of the llama or qwen2 family, seen as a Hugging Face checkpoint: names, shapes, configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.checkpoint.neutral_fields import FAMILIES
from services.common.errors import CorruptData, InvalidRequest, NotFound, Unsupported
from services.loader.bounded_gguf_reader import NONSENSE, BoundedGgufReader
from services.loader.gguf_tensor import PLAIN, QUANTISED, GgufTensor
from services.loader.source_file import is_there

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
_LAYER_NAME: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PECULIARITIES: Final = {  # GGUF's names, after the family's, and config.json's
    "attention.causal": "is_causal",
    "attention.scale": "attention_multiplier",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_BIASED: Final = ("attn_q", "attn_k", "attn_v")  # in the qwen2 family


class GgufFile:
    """An opened file.

    Args:
        path: The file.

    Raises:
        NotFound: There is no such file.
        InvalidRequest: It is no GGUF file.
        CorruptData: It is truncated or ill-formed.
        Unsupported: Another family, or a kind of quantisation that is not read here.
    """

    def __init__(self, path: Path) -> None:
        _check_start(path)
        self._path = path
        try:
            reader = BoundedGgufReader(path)
            self.metadata: Mapping[str, Any] = {
                name: field.contents() for name, field in reader.fields.items()
            }
            self._family = self._known_family()
            self._check_dense()
            self.tensors = tuple(self._describe(stored) for stored in reader.tensors)
        except NONSENSE as fault:
            raise CorruptData(f"{path.name}: not a whole GGUF file ({fault}); fetch it again") from None

    def _known_family(self) -> str:
        family = str(self.metadata.get("general.architecture"))
        if family not in FAMILIES:
            raise Unsupported(
                f"{self._path.name} holds a {family!r} model; this build reads {' and '.join(FAMILIES)}: "
                "give a model of these families",
                reason="ARCHITECTURE_UNSUPPORTED",
            )
        return family

    def _check_dense(self) -> None:
        experts = self._take("expert_count", 0)
        if experts > 0:
            raise Unsupported(
                f"{self._path.name}: {self._family}.expert_count is {experts}, so it is a mixture of experts, and this "
                f"build reads dense models only: give one of the {' or '.join(FAMILIES)} family without experts",
                reason="ARCHITECTURE_UNSUPPORTED",
            )

    def config(self) -> dict[str, Any]:
        """Hugging Face's config.json.

        Raises:
            CorruptData: A field is missing.
        """
        hidden, heads = self._take("embedding_length"), self._take("attention.head_count")
        head_dim = self._take("attention.key_length", hidden // heads)
        return {
            "architectures": [FAMILIES[self._family]],
            "model_type": self._family,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self._take("feed_forward_length"),
            "num_hidden_layers": self._take("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._take("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._take("context_length"),
            "rope_theta": self._take("rope.freq_base", 10_000.0),
            "rope_scaling": self._rope_scaling(),
            "rms_norm_eps": round(self._take("attention.layer_norm_rms_epsilon"), 10),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": all(tensor.name != HEAD for tensor in self.tensors),
            "vocab_size": len(self.metadata["tokenizer.ggml.tokens"]),
            "torch_dtype": "bfloat16",
            **self.special_ids(),
            **self._peculiarities(head_dim),
        }

    def _rope_scaling(self) -> dict[str, Any] | None:
        """How rotary positions are scaled; a factor alone means linearly."""
        factor = self._take("rope.scaling.factor", self._take("rope.scale_linear", 1))
        kind = self._take("rope.scaling.type", "none" if factor in {0, 1} else "linear")
        return None if kind == "none" else {"rope_type": kind, "factor": factor}

    def _peculiarities(self, head_dim: int) -> dict[str, Any]:
        """What the file says beyond a plain decoder, for config.json's reader to judge."""
        said = {
            name: self.metadata[f"{self._family}.{key}"]
            for key, name in _PECULIARITIES.items()
            if f"{self._family}.{key}" in self.metadata
        }
        rotated = self._take("rope.dimension_count", head_dim)
        return said if rotated == head_dim else {**said, "partial_rotary_factor": rotated / head_dim}

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

    def _take(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self._family}.{key}", default)
        if value is None:
            raise CorruptData(f"the GGUF file says nothing of {self._family}.{key}; fetch it again")
        return value

    def _describe(self, stored: Any) -> GgufTensor:
        name, kind = self._place(stored.name)
        if stored.tensor_type not in PLAIN and stored.tensor_type not in QUANTISED:
            raise Unsupported(
                f"tensor {stored.name} is {stored.tensor_type.name}; this build reads "
                f"{', '.join(sorted(known.name for known in (*PLAIN, *QUANTISED)))}: give the model in one of these",
                reason="DTYPE_UNSUPPORTED",
            )
        shape, heads = tuple(int(size) for size in reversed(stored.shape)), self._permuted_heads(kind)
        if min(shape, default=0) < 1 or (heads and shape[0] % (2 * heads)):
            raise ValueError(f"tensor {stored.name} has shape {shape} with {heads} heads")
        return GgufTensor(
            path=self._path,
            name=name,
            shape=shape,
            heads=heads,
            kind=stored.tensor_type,
            offset=int(stored.data_offset),
            stored_bytes=int(stored.n_bytes),
        )

    def _permuted_heads(self, kind: str) -> int:
        """By how many heads the rows of such a tensor were permuted: only llama's q and k are."""
        if self._family != "llama" or kind not in ("attn_q", "attn_k"):
            return 0
        heads = self._take("attention.head_count")
        return int(heads if kind == "attn_q" else self._take("attention.head_count_kv", heads))

    def _place(self, name: str) -> tuple[str, str]:
        """The tensor's Hugging Face name and, for those of a layer, its kind."""
        if name in _OUTER:
            return _OUTER[name], ""
        match = _LAYER_NAME.fullmatch(name)
        if match is None or match[2] not in _LAYER or (match[3] == "bias" and not self._has_bias(match[2])):
            raise Unsupported(
                f"tensor {name} has no place in a plain {self._family} decoder; give another model",
                reason="ARCHITECTURE_UNSUPPORTED",
            )
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}", match[2]

    def _has_bias(self, kind: str) -> bool:
        return self._family == "qwen2" and kind in _BIASED


def _check_start(path: Path) -> None:
    if not is_there(path):
        raise NotFound(f"{path.name}: no such file; give a GGUF file")
    with path.open("rb") as file:
        if (found := recognise(file.read(RECOGNISED_BYTES))) is not FileFormat.GGUF:
            raise InvalidRequest(
                f"{path.name} is not a GGUF file ({found}); fetch it again", reason="WRONG_FORMAT"
            )
