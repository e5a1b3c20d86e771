"""GGUF files of the llama and qwen2 families become Hugging Face checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize
from tokenizers import Tokenizer

from services.common.errors import (
    AlreadyExists,
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
    Unsupported,
)
from services.loader.bfloat16 import to_bfloat16
from services.loader.conversion import convert
from services.loader.gguf import unpack_gguf
from services.loader.gguf_tensor import unpermute
from tests.tiny_checkpoints import STORIES
from tests.unit.loader.gguf_files import (
    SHAPE,
    Array,
    claim_tensors,
    lengthen,
    permute,
    random_values,
    replace,
    write_gguf,
    write_qwen2,
)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_the_permutation_is_undone(heads: int, half: int, columns: int) -> None:
    """Whatever the shape, the rows come back in Hugging Face's order."""
    rows = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    assert rows.tolist() == unpermute(permute(rows, heads), heads).tolist()


def unpacked_tensors(directory: Path) -> dict[str, bytes]:
    content = (directory / "model.safetensors").read_bytes()
    return {name: bytes(tensor["data"]) for name, tensor in deserialize(content)}


def test_weights_come_out_in_hugging_face_order(tmp_path: Path) -> None:
    """Every tensor is what was put in, rounded to bf16; a quantised one is what its blocks stand for."""
    values = random_values()
    unpack_gguf(write_gguf(tmp_path / "m.gguf", values), tmp_path / "hf")
    up = "model.layers.0.mlp.up_proj.weight"
    quantised = gguf.quants.quantize(values[up], gguf.GGMLQuantizationType.Q8_0)
    values[up] = gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
    expected = {name: to_bfloat16(value).tobytes() for name, value in values.items()}
    assert expected == unpacked_tensors(tmp_path / "hf")


def test_the_checkpoint_converts_and_its_tokenizer_works(tmp_path: Path) -> None:
    """Configuration, tokenizer, template and end-of-text come along, and the artifact is whole."""
    unpack_gguf(write_gguf(tmp_path / "m.gguf", random_values()), tmp_path / "hf")
    manifest = convert(tmp_path / "hf", tmp_path / "artifact")
    architecture = manifest.architecture
    assert (SHAPE.head_dim, 512, False) == (
        architecture.head_dim,
        architecture.vocab_size,
        architecture.tie_word_embeddings,
    )
    assert (1e-5, 10_000.0) == (architecture.rms_norm_eps, architecture.rope_theta)
    ours, theirs = (Tokenizer.from_file(str(at / "tokenizer.json")) for at in (tmp_path / "hf", STORIES))
    text = "Once upon a time, 12 cats.<|endoftext|>\n"
    assert theirs.encode(text).ids == ours.encode(text).ids
    assert text == ours.decode(ours.encode(text).ids, skip_special_tokens=False)
    assert {"bos_token_id": 0, "eos_token_id": 0} == json.loads(
        (tmp_path / "hf/generation_config.json").read_text()
    )
    tokenizer_config = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    assert ("{{ messages }}", "<|endoftext|>") == (
        tokenizer_config["chat_template"],
        tokenizer_config["eos_token"],
    )


def test_the_qwen2_family_becomes_a_hugging_face_directory_and_an_artifact(tmp_path: Path) -> None:
    """Biases and all, rows as they are, text split as it does."""
    values = random_values()
    biases = {
        f"model.layers.0.self_attn.{part}_proj.bias": rows for part, rows in (("q", 64), ("k", 32), ("v", 32))
    }
    values |= {name: np.arange(rows, dtype=np.float32) for name, rows in biases.items()}
    unpack_gguf(write_qwen2(tmp_path / "m.gguf", values), tmp_path / "hf")
    expected = {name: to_bfloat16(value).tobytes() for name, value in values.items()}
    assert expected == unpacked_tensors(tmp_path / "hf")
    tokenizer = Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json"))
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's 12 cats!\n\n Ok")]
    assert ["It", "'s", "Ġ", "1", "2", "Ġcats", "!ĊĊ", "ĠOk"] == words
    assert "qwen2" == convert(tmp_path / "hf", tmp_path / "artifact").architecture.model_type


def test_a_file_without_output_is_tied(tmp_path: Path) -> None:
    """llama.cpp leaves tied heads out."""
    values = random_values()
    del values["lm_head.weight"]
    unpack_gguf(write_gguf(tmp_path / "m.gguf", values), tmp_path / "hf")
    assert convert(tmp_path / "hf", tmp_path / "artifact").architecture.tie_word_embeddings


def test_a_dense_file_may_say_so(tmp_path: Path) -> None:
    """No experts is what a file that says nothing of them has."""
    unpack_gguf(
        write_gguf(tmp_path / "m.gguf", random_values(), lambda writer: writer.add_expert_count(0)),
        tmp_path / "hf",
    )
    assert (tmp_path / "hf/config.json").exists()


def test_two_ends_of_text_are_both_kept(tmp_path: Path) -> None:
    """Where a turn ends otherwise than a text, generation stops at either."""
    path = write_gguf(tmp_path / "m.gguf", random_values(), lambda writer: writer.add_eot_token_id(7))
    unpack_gguf(path, tmp_path / "hf")
    generation = json.loads((tmp_path / "hf/generation_config.json").read_text())
    assert [0, 7] == generation["eos_token_id"]


def poisoned() -> dict[str, Array]:
    values = random_values()
    values["model.norm.weight"][3] = np.nan
    return values


def with_experts(writer: gguf.GGUFWriter) -> None:
    """A mixture of experts as llama.cpp's converter writes one: the feed-forward weights of all in one tensor."""
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((8, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((8, 96, 64), np.float32))


REFUSED: dict[str, tuple[Callable[[Path], object], type[HalogenError], str]] = {
    "absent": (lambda path: None, NotFound, "no such file"),
    "not GGUF": (lambda path: path.write_bytes(b"hello, world"), InvalidRequest, "not a GGUF file"),
    "truncated": (lambda path: path.write_bytes(write_gguf(path, random_values()).read_bytes()[:3000]), CorruptData, "not a whole GGUF"),
    "NaN": (lambda path: write_gguf(path, poisoned()), CorruptData, r"model\.norm\.weight holds NaN"),
    "other tokenizer": (
        lambda path: write_gguf(path, random_values(), lambda w: replace(w, "tokenizer.ggml.pre", "chatglm-bpe")),
        Unsupported,
        "'chatglm-bpe'",
    ),
    "scaled rope": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)),
        Unsupported,
        "rope_type of rope_scaling is 'yarn'",
    ),
    "linear rope": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_rope_scaling_factor(4.0)),
        Unsupported,
        "rope_type of rope_scaling is 'linear'",
    ),
    "half rotated": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_rope_dimension_count(8)),
        Unsupported,
        "partial_rotary_factor is 0.5",
    ),
    "capped logits": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_final_logit_softcapping(30.0)),
        Unsupported,
        "final_logit_softcapping is 30.0",
    ),
    "array of 2^62": (lengthen, CorruptData, f"a list of {1 << 62} items"),
    "2^62 tensors": (claim_tensors, CorruptData, f"a list of {1 << 62} items"),
    "no tokens": (
        lambda path: write_gguf(path, random_values(), lambda w: w.kv_data[0].pop("tokenizer.ggml.tokens")),
        CorruptData,
        r"tokenizer\.ggml\.tokens",
    ),
    "a token beyond": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_pad_token_id(9999)),
        CorruptData,
        "describes no whole model",
    ),
    "no heads": (
        lambda path: write_gguf(path, random_values(), lambda w: replace(w, "llama.attention.head_count", 0)),
        CorruptData,
        "describes no whole model|not a whole GGUF",
    ),
    "other tensors": (
        lambda path: write_gguf(path, random_values(), lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(4, np.float32))),
        Unsupported,
        r"attn_q\.bias",
    ),
    "experts": (
        lambda path: write_gguf(path, random_values(), with_experts),
        Unsupported,
        r"m\.gguf: llama\.expert_count is 8, so it is a mixture of experts, .*: give one of the llama or qwen2 family",
    ),
    "other architecture": (
        lambda path: write_gguf(path, random_values(), lambda w: replace(w, "general.architecture", "mamba")),
        Unsupported,
        "'mamba'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_rightly_is_refused(tmp_path: Path, case: str) -> None:
    """The message says what it is, and nothing is written."""
    make, kind, expected = REFUSED[case]
    make(tmp_path / "m.gguf")
    with pytest.raises(kind, match=expected):
        unpack_gguf(tmp_path / "m.gguf", tmp_path / "hf")
    assert {"m.gguf"} >= {path.name for path in tmp_path.iterdir()}


def test_a_destination_in_use_is_left_alone(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    path = write_gguf(tmp_path / "m.gguf", random_values())
    with pytest.raises(AlreadyExists, match="give another DIR"):
        unpack_gguf(path, path)


def test_float32_rounds_to_nearest_even() -> None:
    """Ties go to the even neighbour, also across an exponent; signs and zeros stay."""
    cases: dict[int, int] = {
        0x3F800000: 0x3F80,
        0x3F807FFF: 0x3F80,
        0x3F808000: 0x3F80,
        0x3F808001: 0x3F81,
        0x3F818000: 0x3F82,
        0x3FFF8000: 0x4000,
        0x80000000: 0x8000,
        0xBF808001: 0xBF81,
    }
    values = np.array(list(cases), np.uint32).view(np.float32)
    assert list(cases.values()) == to_bfloat16(values).tolist()
    scattered: Any = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)[:, ::2]
    assert to_bfloat16(scattered.copy()).tolist() == to_bfloat16(scattered).tolist()
