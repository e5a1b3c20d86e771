"""Fields of Hugging Face's config.json that change what a model computes, and what they say where they change nothing.

Names of other families are among them: who derives a model from ours keeps its `model_type` and adds such a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from services.common.errors import Unsupported

FAMILIES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}  # model_type to its decoder's class
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "hidden_act": (None, "silu"),
    "hidden_activation": (None, "silu"),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "is_causal": (None, True),
    "use_sliding_window": (None, False),
    "attention_chunk_size": (None,),
    "attn_temperature_tuning": (None, False),
    "clip_qkv": (None,),
    "qk_norm": (None, False),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "norm_type": (None, "rmsnorm", "rms_norm", "RMSNorm"),
    "alibi": (None, False),
    "parallel_attn": (None, False),
    "use_parallel_residual": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "scale_emb": (None, 1.0),
    "scale_depth": (None, 1.0),
    "partial_rotary_factor": (None, 1.0),
    "rotary_pct": (None, 1.0),
    "rope_interleaved": (None, False),
    "rope_interleave": (None, False),
    "no_rope_layers": (None,),
    "quantization_config": (None,),
}
_NEUTRAL_ROPE: Final[
    Mapping[str, tuple[Any, ...]]
] = {  # of rope_scaling, or of rope_parameters as it is called since
    "rope_type": (None, "default"),
    "type": (None, "default"),
    "partial_rotary_factor": (None, 1.0),
    "mrope_section": (None,),
    "full_attention": (None,),  # by kind of layer
    "sliding_attention": (None,),
}
_REMEDIES: Final = {"quantization_config": "give the model as it was before it was quantised"}


def check_fields(config: Mapping[str, Any]) -> None:
    """Looks at all of them.

    Raises:
        Unsupported: One changes something; the message names it, and what would do.
        ValueError: One is of the wrong type.
    """
    rope = rope_fields(config)
    for name, allowed in _NEUTRAL.items():
        check_field(name, config.get(name), allowed)
    for name, allowed in _NEUTRAL_ROPE.items():
        check_field(f"{name} of rope_scaling", rope.get(name), allowed)
    _check_window(config)
    _check_classes(config)


def check_field(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raises Unsupported unless the value is one of those allowed."""
    if value not in allowed:
        wanted = " or ".join(repr(each) for each in allowed if each is not None) or "none"
        remedy = _REMEDIES.get(name, "give another model")
        raise Unsupported(
            f"config.json: {name} is {value!r:.80}; this build serves {wanted}: {remedy}",
            reason="ARCHITECTURE_UNSUPPORTED",
        )


def rope_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the rotary positions beside the top level; raises ValueError where that is no object."""
    fields: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name)
        if not isinstance(value, dict | None):
            raise ValueError(f"{name} is not an object")  # noqa: TRY004  # a fault of the data, not of the caller
        fields |= value or {}
    return fields


def _check_window(config: Mapping[str, Any]) -> None:
    """Attention must reach all that came before; qwen2 names a window that it does not use unless told to."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        kinds = next((kind for kind in kinds if kind != "full_attention"), None)
    check_field("layer_types", kinds, (None, "full_attention"))
    if config["model_type"] != "qwen2" and config.get("use_sliding_window") is None:
        check_field("sliding_window", config.get("sliding_window"), (None,))


def _check_classes(config: Mapping[str, Any]) -> None:
    """Of the classes that are named, if any, one is the family's decoder; older files write LLaMAForCausalLM."""
    named = config.get("architectures") or []
    if not isinstance(named, list):
        raise ValueError("architectures is not a list")  # noqa: TRY004  # a fault of the data, not of the caller
    wanted = FAMILIES[config["model_type"]]
    if named and wanted.lower() not in (str(each).lower() for each in named):
        check_field("architectures", named, ([wanted],))
