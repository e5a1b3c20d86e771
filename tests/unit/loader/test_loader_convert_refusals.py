"""What is no checkpoint, or none that could be served: refused by name, with what to do, and nothing is written."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common.errors import CorruptData, HalogenError, InvalidRequest, NotFound, Unsupported
from services.loader.conversion import convert
from tests.tiny_checkpoints import (
    TinyShape,
    random_tensors,
    write_shards,
    write_tensors,
    write_tiny_checkpoint,
)


def replace_weights(source: Path, tensors: dict[str, Any]) -> None:
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors)


def change_config(source: Path, **changes: Any) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changes))


def change_tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        tensors = random_tensors(TinyShape(), 0)
        change(tensors)
        replace_weights(source, tensors)

    return apply


def rename_weights(name: str) -> Callable[[Path], object]:
    return lambda source: (source / "model.safetensors").rename(source / name)


def cut_weights(source: Path) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def replace_by(make: Callable[[Path], object], name: str = "model.safetensors") -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        (source / name).unlink()
        make(source / name)

    return apply


def store_as(dtype: str) -> Callable[[Path], object]:
    content = safetensors_bytes({"a": tensor(0, 8, [8 if "8" in dtype else 1], dtype)})
    return lambda source: (source / "model.safetensors").write_bytes(content)


def say_twice(path: Path, key: str) -> None:
    """The object in the file begins with a key that it has further on."""
    path.write_text(f'{{"{key}": {{}}, {path.read_text().strip()[1:]}')


def safetensors_bytes(header: object, data: bytes = bytes(8)) -> bytes:
    return with_header(json.dumps(header).encode(), data)


def with_header(text: bytes, data: bytes = bytes(8)) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


NORM = "model.norm.weight"


def generate_with(**fields: Any) -> Callable[[Path], object]:
    return lambda source: (source / "generation_config.json").write_text(json.dumps(fields))


REFUSED: dict[str, tuple[Callable[[Path], object], type[HalogenError], str]] = {
    "v2 artifact": (rename_weights("model.halogen"), InvalidRequest, "whole artifact directory"),
    "gguf": (rename_weights("model-q4.gguf"), InvalidRequest, "not a GGUF file"),
    "torch": (rename_weights("pytorch_model.bin"), CorruptData, "not a PyTorch zip file"),
    "no weights": (rename_weights("weights.npz"), InvalidRequest, r"none of model\.safetensors"),
    "no config": (lambda s: (s / "config.json").unlink(), InvalidRequest, r"no config\.json"),
    "no tokenizer": (lambda s: (s / "tokenizer.json").unlink(), InvalidRequest, r"no tokenizer\.json"),
    "config no JSON": (lambda s: (s / "config.json").write_text("{"), CorruptData, r"config\.json: not JSON"),
    "config no object": (lambda s: (s / "config.json").write_text("[]"), CorruptData, "not a JSON object"),
    "tokenizer empty": (lambda s: (s / "tokenizer.json").write_text(""), InvalidRequest, r"tokenizer\.json: 0"),
    "other model": (lambda s: change_config(s, model_type="opt"), Unsupported, "'opt'"),
    "config silent": (lambda s: change_config(s, hidden_size=None), InvalidRequest, "hidden_size"),
    "truncated": (cut_weights, CorruptData, r"model\.safetensors: not a whole"),
    "not safetensors": (lambda s: (s / "model.safetensors").write_bytes(b"x" * 64), CorruptData, "not a whole"),
    "tensor missing": (change_tensors(lambda t: t.pop(NORM)), InvalidRequest, f"missing tensors: {NORM}"),
    "tensor extra": (change_tensors(lambda t: t.update(extra=t[NORM])), InvalidRequest, "no place for: extra"),
    "layer extra": (lambda s: change_config(s, num_hidden_layers=1), InvalidRequest, r"no place for: model\.layers\.1"),
    "layer missing": (lambda s: change_config(s, num_hidden_layers=3), InvalidRequest, r"missing tensors: model\.layers\.2"),
    "tensor mis-shaped": (change_tensors(lambda t: t.update({NORM: t[NORM][:-1]})), InvalidRequest, r"\[63\].*\[64\]"),
    "embedding missing": (change_tensors(lambda t: t.pop("model.embed_tokens.weight")), InvalidRequest, "embed_tokens"),
    "dtypes mixed": (change_tensors(lambda t: t.update({NORM: np.full(64, 1 / 3, np.float32)})), Unsupported, NORM),
    "generation config no JSON": (lambda s: (s / "generation_config.json").write_text("{"), CorruptData, "not JSON"),
    "temperature no number": (generate_with(temperature="hot"), CorruptData, r"generation_config\.json: temperature is .hot."),
    "temperature NaN": (generate_with(temperature=math.nan), CorruptData, r"generation_config\.json: temperature is NaN"),
    "ending token unknown": (generate_with(eos_token_id=999999), CorruptData, r"generation_config\.json: eos_token_id is 999999"),
    "config says twice": (lambda s: say_twice(s / "config.json", "hidden_size"), CorruptData, "'hidden_size' is there twice"),
    "int8": (store_as("I8"), Unsupported, "tensor a is I8"),
    "float64": (store_as("F64"), Unsupported, "tensor a is F64"),
    "fp8": (store_as("F8_E4M3"), Unsupported, "before it was quantised"),
    "weights a pipe": (replace_by(os.mkfifo), InvalidRequest, r"model\.safetensors is a pipe"),
    "weights a directory": (replace_by(os.mkdir), InvalidRequest, r"model\.safetensors is a directory"),
    "weights a dead link": (replace_by(lambda path: path.symlink_to("x")), InvalidRequest, "a link to a file that is not there"),
    "tokenizer a pipe": (replace_by(os.mkfifo, "tokenizer.json"), InvalidRequest, r"tokenizer\.json is a pipe"),
    "tie broken": (lambda s: change_config(s, tie_word_embeddings=True), InvalidRequest, "lm_head.weight differs"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_answer_wrongly_is_refused(tmp_path: Path, case: str) -> None:
    """The message names the file, field or tensor and says what to do, and nothing is written.

    Fault injection: turns red when `Checkpoint.open` does not look at how to generate.
    """
    damage, kind, expected = REFUSED[case]
    source = write_tiny_checkpoint(tmp_path / "source")
    damage(source)
    with pytest.raises(kind, match=expected) as refused:
        convert(source, tmp_path / "artifact")
    assert re.search("[;:] (fetch|give|put|save|set|write) ", refused.value.message), refused.value.message
    assert [source] == list(tmp_path.iterdir())


def test_a_file_given_for_a_directory_is_recognised(tmp_path: Path) -> None:
    """The v2 file, the torn GGUF file and the safetensors file each get their own advice."""
    source = write_tiny_checkpoint(tmp_path / "source")
    convert(source, tmp_path / "artifact")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(20))
    cases = {
        tmp_path / "artifact/model.halogen": "give its artifact directory",
        source / "model.safetensors": "give its directory",
    }
    for path, advice in cases.items():
        with pytest.raises(InvalidRequest, match=advice):
            convert(path, tmp_path / "out")
    with pytest.raises(CorruptData, match="not a whole GGUF file"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(InvalidRequest, match=r"pipe\.gguf is a pipe; put the file itself in its place"):
        convert(tmp_path / "pipe.gguf", tmp_path / "out")
    with pytest.raises(NotFound, match="give a Hugging Face directory"):
        convert(tmp_path / "absent", tmp_path / "out")


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({"a": "../../evil.safetensors"}, "plain name"),
        ({"a": "/evil.safetensors"}, "not relative"),
        ({"a": "absent.safetensors"}, "which is not there"),
        ({"a": 7}, "no weight_map"),
        ({"a": "model-00001-of-00002.safetensors"}, "tensor a is not in"),
        (None, "no weight_map"),
    ],
)
def test_an_index_is_believed_nothing(tmp_path: Path, weight_map: object, expected: str) -> None:
    """It may name only files beside it, and must tell the truth about them."""
    source = write_tiny_checkpoint(tmp_path / "source", shards=2)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(HalogenError, match=expected):
        convert(source, tmp_path / "artifact")


def leave_out(index: Path) -> None:
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(
        json.dumps({"weight_map": {name: file for name, file in weight_map.items() if name != NORM}})
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (leave_out, rf"says nothing of {NORM} in model-0000\d-of-00002\.safetensors; fetch"),
        (lambda index: say_twice(index, "weight_map"), "'weight_map' is there twice.*; fetch"),
    ],
)
def test_an_index_names_every_tensor_once(
    tmp_path: Path, damage: Callable[[Path], None], expected: str
) -> None:
    """One that leaves a tensor out, or is not sure, belongs to other files.

    Fault injection: turns red when `_read_sharded` does not look for tensors that the index does not name.
    """
    source = write_tiny_checkpoint(tmp_path / "source", shards=2)
    damage(source / "model.safetensors.index.json")
    with pytest.raises(CorruptData, match=expected):
        convert(source, tmp_path / "artifact")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Which of the two would be right, nobody knows."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / "model.safetensors").unlink()
    tensors = random_tensors(TinyShape(), 0)
    write_shards(source, tensors, 2)
    path = source / "model-00002-of-00002.safetensors"
    path.unlink()
    write_tensors(path, tensors)
    with pytest.raises(CorruptData, match="in another file too"):
        convert(source, tmp_path / "artifact")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05\0\0\0\0\0\0\0",
        (1 << 62).to_bytes(8, "little") + b"{}",
        safetensors_bytes([]),
        safetensors_bytes({"a": 1}),
        safetensors_bytes({"a": {}}),
        safetensors_bytes({"a": tensor(0, 8, [1])}),
        safetensors_bytes({"a": tensor(0, 4, [1])}),
        safetensors_bytes({"a": tensor(0, 8, [2]), "b": tensor(4, 8, [1])}),
        safetensors_bytes({"a": tensor(8, 0, [-2])}),
        safetensors_bytes({"a": tensor(0, 8, ["2"])}),
        safetensors_bytes({"a": tensor(4, 12, [2])}),
        safetensors_bytes({"a": tensor(0, 16, [4])}),
        with_header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {}}'),
    ],
)
def test_a_malformed_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Truncated, overlapping, with gaps or nonsense: corrupt, by its name."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(content)
    with pytest.raises(CorruptData, match=r"model\.safetensors"):
        convert(source, tmp_path / "artifact")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("tokenizer.json", '{"a": 1}', r"tokenizer\.json cannot be read"),
        ("chat_template.jinja", "{% for message in messages %}", "the chat template.* cannot be read"),
        ("tokenizer_config.json", '{"chat_template": "{{ messages"}', "the chat template.* cannot be read"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default"}]}',
            "the chat template cannot be read",
        ),
        ("chat_template.jinja", b"\xff\xfe", "the chat template cannot be read"),
        ("chat_template.jinja", "{{ (7**300000000) % 3 }}", r"chat_template\.jinja.* more than 4096 bits"),
        (
            "tokenizer_config.json",
            '{"chat_template": "{{ 3 * 10**9 * [1] }}"}',
            r"tokenizer_config\.json.* more than",
        ),
    ],
)
def test_what_no_gateway_could_read_is_refused(
    tmp_path: Path, name: str, content: str | bytes, what: str
) -> None:
    """In one line, and nothing is made. Fault injection: `Checkpoint.open` does not check text files."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CorruptData, match=what) as refused:
        convert(source, tmp_path / "artifact")
    assert (1, True) == (len(refused.value.message.splitlines()), "save_pretrained" in refused.value.message)
    assert not (tmp_path / "artifact").exists()
