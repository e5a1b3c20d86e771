"""Architectures: what the engine can run is read, everything else is refused before a byte of weights is."""

from __future__ import annotations

from typing import Any

import pytest

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.errors import Unsupported
from tests.tiny_checkpoints import TinyShape

CONFIG = TinyShape().config()
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def test_silent_fields_take_transformers_defaults() -> None:
    """Old configurations leave much unsaid; the meaning is LlamaConfig's."""
    silent = {
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
    }
    config = {name: value for name, value in CONFIG.items() if name not in silent}
    architecture = Architecture.from_config(config, DType.FP16)
    assert (4, 16, 10_000.0) == (
        architecture.num_key_value_heads,
        architecture.head_dim,
        architecture.rope_theta,
    )
    assert (1e-6, 2048, False) == (
        architecture.rms_norm_eps,
        architecture.max_position_embeddings,
        architecture.tie_word_embeddings,
    )
    assert DType.FP16 is architecture.dtype


def test_silent_fields_of_qwen2_are_its_own() -> None:
    """Qwen2Config assumes other numbers than LlamaConfig."""
    silent = {"num_key_value_heads", "max_position_embeddings"}
    config = {name: value for name, value in CONFIG.items() if name not in silent}
    qwen2 = {**config, **QWEN2, "num_attention_heads": 64, "head_dim": 16}
    architecture = Architecture.from_config(qwen2, DType.BF16)
    assert (32, 32_768) == (architecture.num_key_value_heads, architecture.max_position_embeddings)
    assert architecture.has_qkv_bias


def test_fields_are_read_back_as_written() -> None:
    """What a manifest holds is the whole architecture."""
    architecture = Architecture.from_config(CONFIG, DType.BF16)
    assert architecture == Architecture.from_fields(architecture.to_fields())


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500_000.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "rope_theta": None},
        {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500_000},
    ],
)
def test_the_rotary_base_is_found_where_versions_put_it(rope: dict[str, Any]) -> None:
    """transformers 5 moved it into rope_parameters."""
    assert 500_000.0 == Architecture.from_config({**CONFIG, **rope}, DType.BF16).rope_theta


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'; this build serves 'llama' or 'qwen2'"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type of rope_scaling is 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "type of rope_scaling is 'linear'"),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope_type of rope_scaling is 'yarn'; this build serves 'default'",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor of rope_scaling"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention of rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; this build serves 1.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; this build serves none"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"sliding_window": 4096}, "sliding_window is 4096; this build serves none"),
        (
            {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
            "is 'sliding_attention'",
        ),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
        ({"residual_multiplier": 0.22}, "residual_multiplier"),
        ({"attention_multiplier": 0.0078125}, "attention_multiplier"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; this build serves 'silu'"),
        ({"norm_type": "layernorm"}, "norm_type is 'layernorm'"),
        ({"rope_interleaved": True}, "rope_interleaved is True; this build serves False"),
        ({"rope_interleave": True}, "rope_interleave is True"),
        ({"qk_norm": True}, "qk_norm is True"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"qk_layernorm": True}, "qk_layernorm"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is 8192; this build serves none"),
        ({"attn_temperature_tuning": True}, "attn_temperature_tuning"),
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ({"alibi": True}, "alibi"),
        ({"parallel_attn": True}, "parallel_attn"),
        ({"use_parallel_residual": True}, "use_parallel_residual"),
        ({"architectures": ["LlamaForSequenceClassification"]}, r"architectures is .*\['LlamaForCausalLM'\]"),
        ({**QWEN2, "architectures": ["LlamaForCausalLM"]}, r"this build serves \['Qwen2ForCausalLM'\]"),
        ({"is_causal": False}, "is_causal is False; this build serves True"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_by_field(changes: dict[str, Any], named: str) -> None:
    """A model that would answer wrongly is never converted, and what to give instead is said.

    Fault injection: turns red when the field's line is missing in `_NEUTRAL` or `_NEUTRAL_ROPE`, or `check_fields`
    does not look at the classes.
    """
    with pytest.raises(Unsupported, match=named) as refused:
        Architecture.from_config({**CONFIG, **changes}, DType.BF16)
    assert ": give " in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {**QWEN2, "sliding_window": 32_768, "max_window_layers": 21},
        {**QWEN2, "use_sliding_window": False, "layer_types": ["full_attention"] * 2},
        {"use_sliding_window": False, "sliding_window": 4096},
        {
            "partial_rotary_factor": 1.0,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
        },
        {"embedding_multiplier": 1.0, "residual_multiplier": 1, "logits_scaling": 1.0},
        {"final_logit_softcapping": None, "sliding_window": None, "quantization_config": None},
        {
            "hidden_activation": "silu",
            "norm_type": "rmsnorm",
            "rope_interleaved": False,
            "use_qk_norm": False,
        },
        {"architectures": ["Another", "LlamaForCausalLM"]},
        {"architectures": ["LLaMAForCausalLM"]},
        {"architectures": None},
        {"pretraining_tp": 2, "attention_dropout": 0.0, "initializer_range": 0.02},
    ],
)
def test_fields_that_change_nothing_are_no_reason_to_refuse(changes: dict[str, Any]) -> None:
    """The architecture is that of a configuration without them. Turns red when: a neutral value is left out."""
    expected = {**CONFIG, **(QWEN2 if changes.keys() >= QWEN2.keys() else {})}
    assert Architecture.from_config(expected, DType.BF16) == Architecture.from_config(
        {**expected, **changes}, DType.BF16
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 15}, "head_dim is odd"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rope_theta": [1]}, "rope_theta"),
        ({"architectures": 5}, "architectures is not a list"),
        ({"rope_scaling": "linear"}, "rope_scaling is not an object"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, Any], named: str) -> None:
    """A field that is missing, of another type or out of range is named."""
    with pytest.raises(ValueError, match=named):
        Architecture.from_config({**CONFIG, **changes}, DType.BF16)
