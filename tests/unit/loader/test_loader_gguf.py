"""GGUF files of the llama family become Hugging Face checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize
from tokenizers import Tokenizer

from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.header import Header
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
from services.loader.gguf_tensor import GgufTensor, unpermute
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


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_the_permutation_is_undone(heads: int, half: int, columns: int) -> None:
    """Whatever the shape, the rows come back in Hugging Face's order."""
    rows = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    assert rows.tolist() == unpermute(permute(rows, heads), heads).tolist()


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
    heads = {"blk.0.attn_q.weight": SHAPE.num_attention_heads, "blk.0.attn_k.weight": SHAPE.num_key_value_heads}
    return permute(value, heads[name]) if name in heads else value


def write_tensor(
    writer: gguf.GGUFWriter, name: str, value: Array, kind: gguf.GGMLQuantizationType | None
) -> None:
    if kind is None:
        writer.add_tensor(name, value)
    else:
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)


def artifact_tensors(directory: Path) -> dict[str, bytes]:
    content = (directory / "model.halogen").read_bytes()
    return {name: content[entry.offset : entry.end] for name, entry in Header.decode(content).tensors.items()}


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


def qwen2(values: dict[str, Array], path: Path) -> Path:
    """A file of the qwen2 family: q, k and v with biases, and no rows permuted."""

    def change(writer: gguf.GGUFWriter) -> None:
        for key in [key for key in writer.kv_data[0] if key.startswith("llama.")]:
            writer.kv_data[0][key.replace("llama.", "qwen2.")] = writer.kv_data[0].pop(key)
        replace(writer, "general.architecture", "qwen2")
        replace(writer, "tokenizer.ggml.pre", "qwen2")
        for part in "qkv":
            writer.add_tensor(f"blk.0.attn_{part}.bias", values[f"model.layers.0.self_attn.{part}_proj.bias"])

    return write_gguf(path, values, change, kinds={}, permuted=False)


def test_the_qwen2_family_becomes_a_hugging_face_directory(tmp_path: Path) -> None:
    """Biases and all, rows as they are, text split as it does; no artifact, until an engine computes it."""
    values = random_values()
    biases = {f"model.layers.0.self_attn.{part}_proj.bias": rows for part, rows in (("q", 64), ("k", 32), ("v", 32))}
    values |= {name: np.arange(rows, dtype=np.float32) for name, rows in biases.items()}
    unpack_gguf(qwen2(values, tmp_path / "m.gguf"), tmp_path / "hf")
    expected = {name: to_bfloat16(value).tobytes() for name, value in values.items()}
    assert expected == unpacked_tensors(tmp_path / "hf")
    tokenizer = Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json"))
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's 12 cats!\n\n Ok")]
    assert ["It", "'s", "Ġ", "1", "2", "Ġcats", "!ĊĊ", "ĠOk"] == words
    with pytest.raises(Unsupported, match="model_type is 'qwen2'"):
        convert(tmp_path / "hf", tmp_path / "artifact")


def test_a_file_without_output_is_tied(tmp_path: Path) -> None:
    """llama.cpp leaves tied heads out."""
    values = random_values()
    del values["lm_head.weight"]
    unpack_gguf(write_gguf(tmp_path / "m.gguf", values), tmp_path / "hf")
    assert convert(tmp_path / "hf", tmp_path / "artifact").architecture.tie_word_embeddings


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
        "scaled",
    ),
    "array of 2^62": (lambda path: lengthen(path), CorruptData, "not a whole GGUF"),
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
    "other architecture": (
        lambda path: write_gguf(path, random_values(), lambda w: replace(w, "general.architecture", "mamba")),
        Unsupported,
        "'mamba'",
    ),
}  # fmt: skip


def lengthen(path: Path) -> None:
    """The list of token types claims 2^62 of them."""
    content = write_gguf(path, random_values()).read_bytes()
    at = content.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    path.write_bytes(content[:at] + (1 << 62).to_bytes(8, "little") + content[at + 8 :])


def replace(writer: gguf.GGUFWriter, key: str, value: str | int) -> None:
    writer.kv_data[0][key].value = value


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_rightly_is_refused(tmp_path: Path, case: str) -> None:
    """The message says what it is, and nothing is written."""
    make, kind, expected = REFUSED[case]
    make(tmp_path / "m.gguf")
    with pytest.raises(kind, match=expected):
        unpack_gguf(tmp_path / "m.gguf", tmp_path / "hf")
    assert {"m.gguf"} >= {path.name for path in tmp_path.iterdir()}


QUANTISED = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16")]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_a_quantised_file_is_dequantised_when_told_so(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    """Each value is what its block stands for, in float32; q and k in Hugging Face's order."""
    values = random_values()
    path = write_gguf(tmp_path / "m.gguf", values, kinds=dict.fromkeys(ROWS_OF_64, kind))
    notes: list[str] = []
    fp32 = ConversionOptions(quant_policy=QuantPolicy.FP32, validation=Validation.FULL)
    convert(path, tmp_path / "a", options=fp32, note=notes.append)
    for name in ROWS_OF_64:
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2], 0)
        rows = permute(values[name], heads) if heads else values[name]
        rows = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
        values[name] = unpermute(rows, heads) if heads else rows
    expected = {name: value.astype(np.float32).tobytes() for name, value in values.items()}
    assert expected == artifact_tensors(tmp_path / "a")
    assert (kind.name == "BF16") is not any("dequantised: " + kind.name in note for note in notes)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K])
def test_rows_of_256_come_in_superblocks(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Read a few rows at a time, they are what the gguf package makes of the whole tensor."""
    rng = np.random.default_rng(0)
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 64, (3000, 2 * block_bytes), np.uint8)  # small scales: all of it is finite
    (tmp_path / "blocks").write_bytes(b"head" + blocks.tobytes())
    tensor = GgufTensor(
        path=tmp_path / "blocks",
        name="w",
        shape=(3000, 512),
        heads=0,
        kind=kind,
        offset=4,
        stored_bytes=blocks.nbytes,
    )
    pieces = [bytes(piece) for piece in tensor.pieces()]
    assert len(pieces) > 1
    assert gguf.quants.dequantize(blocks, kind).astype(np.float32).tobytes() == b"".join(pieces)


def test_a_quantised_file_is_never_blown_up_unasked(tmp_path: Path) -> None:
    """It is refused with what it takes, what it would take, and how to ask."""
    path = write_gguf(tmp_path / "m.gguf", random_values())
    with pytest.raises(
        Unsupported, match=r"Q8_0 \(1\) of \d+ bytes are \d+ bytes in bf16.*--quant-policy bf16"
    ):
        convert(path, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_unquantised_file_is_kept(tmp_path: Path) -> None:
    """float32 stays float32, straight into the artifact; its directory does as well as the file."""
    (tmp_path / "model").mkdir()
    path = write_gguf(tmp_path / "model/m.gguf", random_values(), kinds={})
    first = convert(path, tmp_path / "a")
    expected = {name: value.tobytes() for name, value in random_values().items()}
    assert expected == artifact_tensors(tmp_path / "a")
    assert first.id == convert(tmp_path / "model", tmp_path / "b").id


def test_by_way_of_hugging_face_or_straight_is_the_same(tmp_path: Path) -> None:
    """bf16 weights and every small file: one artifact id."""
    path = write_gguf(tmp_path / "m.gguf", random_values())
    unpack_gguf(path, tmp_path / "hf")
    bf16 = ConversionOptions(quant_policy=QuantPolicy.BF16)
    assert convert(tmp_path / "hf", tmp_path / "a").id == convert(path, tmp_path / "b", options=bf16).id


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
