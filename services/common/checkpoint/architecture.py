"""What a model is made of, read from its Hugging Face configuration; only what the engine can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Self

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.neutral_fields import check_field, check_fields, rope_fields

_COMMON_DEFAULTS: Final = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {  # what transformers assumes where config.json is silent
    "llama": {**_COMMON_DEFAULTS, "max_position_embeddings": 2048},
    "qwen2": {**_COMMON_DEFAULTS, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The decoder's shape: enough to plan memory and to know every tensor before one byte is read."""

    model_type: str
    dtype: DType
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    @property
    def has_qkv_bias(self) -> bool:
        """Whether q, k and v have biases: what sets the qwen2 family apart."""
        return self.model_type == "qwen2"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: DType) -> Self:
        """Reads Hugging Face's config.json.

        Args:
            config: The decoded file.
            dtype: What the weights are stored in.

        Raises:
            Unsupported: The engine cannot run it; the message names the field and what would do.
            ValueError: A field is missing or of the wrong type.
        """
        check_field("model_type", config.get("model_type"), tuple(_DEFAULTS))
        check_fields(config)
        heads = _count(config, "num_attention_heads")
        derived = {
            "num_key_value_heads": heads,
            "head_dim": _count(config, "hidden_size") // heads,
            "rope_theta": _rope_theta(config),
        }
        defaults = _DEFAULTS[config["model_type"]]
        chosen = {**derived, **defaults, **{k: v for k, v in config.items() if v is not None}}
        return cls.from_fields(
            {**chosen, "rope_theta": derived["rope_theta"], "dtype": dtype.value}, exact=False
        )

    @classmethod
    def from_fields(cls, value: Any, *, exact: bool = True) -> Self:
        """Reads what `to_fields` gave; raises ValueError on anything else.

        Args:
            value: The decoded JSON.
            exact: Whether fields beyond ours are refused.
        """
        fields = Fields(value, "architecture")
        architecture = cls(
            model_type=fields.take("model_type", str),
            dtype=DType(fields.take("dtype", str)),
            rms_norm_eps=fields.take("rms_norm_eps", float),
            rope_theta=fields.take("rope_theta", float),
            tie_word_embeddings=fields.take("tie_word_embeddings", bool),
            **{name: fields.take_count(name, least=1, most=_MOST.get(name, 1 << 32)) for name in _COUNTS},
        )
        if exact:
            fields.finish()
        architecture._check()
        return architecture

    def to_fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"dtype": self.dtype.value}

    def _check(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is not a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim is odd")
        if not (0 < self.rms_norm_eps < 1 and 0 < self.rope_theta < float("inf")):
            raise ValueError("rms_norm_eps or rope_theta is out of range")


_MOST: Final = {"num_hidden_layers": 4096}  # each is so many tensors and operations to whoever reads this
_COUNTS: Final = tuple(field.name for field in dataclasses.fields(Architecture) if field.type == "int")


def _count(config: Mapping[str, Any], name: str) -> int:
    return Fields(config, "config.json").take_count(name, least=1, most=1 << 32)


def _rope_theta(config: Mapping[str, Any]) -> float:
    """The base of the rotary positions."""
    theta = rope_fields(config).get("rope_theta", config.get("rope_theta"))
    return (
        10_000.0 if theta is None else Fields({"rope_theta": theta}, "config.json").take("rope_theta", float)
    )
