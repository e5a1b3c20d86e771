"""The converter: exact bytes, nothing missing, nothing extra, there whole or not at all."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize

from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.errors import (
    AlreadyExists,
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unsupported,
)
from services.loader.conversion import convert
from tests.tiny_checkpoints import (
    MULTI_BLOCK,
    STORIES,
    TinyShape,
    random_tensors,
    write_shards,
    write_tensors,
    write_tiny_checkpoint,
)


def stored_tensors(artifact: Path) -> dict[str, bytes]:
    content = (artifact / "model.halogen").read_bytes()
    return {name: content[entry.offset : entry.end] for name, entry in Header.decode(content).tensors.items()}


def source_tensors(directory: Path) -> dict[str, bytes]:
    """What the safetensors package itself reads."""
    found: dict[str, bytes] = {}
    for path in directory.glob("*.safetensors"):
        found |= {name: bytes(tensor["data"]) for name, tensor in deserialize(path.read_bytes())}
    return found


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16, DType.FP32])
@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_arrives_bit_for_bit(tmp_path: Path, dtype: DType, tied: bool) -> None:
    """The stored bytes are the source's, under the source's names."""
    source = write_tiny_checkpoint(tmp_path / "source", TinyShape(dtype=dtype, tie_word_embeddings=tied))
    manifest = convert(source, tmp_path / "artifact")
    assert source_tensors(source) == stored_tensors(tmp_path / "artifact")
    assert manifest == read_manifest(tmp_path / "artifact")
    assert dtype is manifest.architecture.dtype


def test_a_real_checkpoint_is_converted(tmp_path: Path) -> None:
    """stories-v1, with its tokenizer beside it."""
    manifest = convert(STORIES, tmp_path / "artifact")
    assert source_tensors(STORIES) == stored_tensors(tmp_path / "artifact")
    assert ["config.json", "model.halogen", "tokenizer.json", "tokenizer_config.json"] == [
        file.path for file in manifest.files
    ]
    assert (STORIES / "tokenizer.json").read_bytes() == (tmp_path / "artifact/tokenizer.json").read_bytes()


def test_shards_and_one_file_give_one_artifact(tmp_path: Path) -> None:
    """How the source was cut leaves no trace in the id."""
    single = convert(write_tiny_checkpoint(tmp_path / "single"), tmp_path / "a")
    sharded = convert(write_tiny_checkpoint(tmp_path / "sharded", shards=3), tmp_path / "b")
    assert single.id == sharded.id


def test_another_seed_is_another_artifact(tmp_path: Path) -> None:
    """One weight differs, so does the id."""
    first = convert(write_tiny_checkpoint(tmp_path / "one", seed=1), tmp_path / "a")
    second = convert(write_tiny_checkpoint(tmp_path / "two", seed=2), tmp_path / "b")
    assert first.id != second.id


def test_a_copy_of_tied_embeddings_and_derived_buffers_are_dropped(tmp_path: Path) -> None:
    """Stored once, or not at all: the artifact is the one without them."""
    shape = TinyShape(tie_word_embeddings=True)
    clean = convert(write_tiny_checkpoint(tmp_path / "clean", shape), tmp_path / "a")
    source = write_tiny_checkpoint(tmp_path / "redundant", shape)
    tensors = random_tensors(shape, 0)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    replace_weights(source, tensors)
    assert clean.id == convert(source, tmp_path / "b").id


def test_memory_stays_below_two_blocks(tmp_path: Path) -> None:
    """Tensors are streamed: a 12 MiB model passes through a 4 MiB buffer."""
    source = write_tiny_checkpoint(tmp_path / "source", MULTI_BLOCK)
    tracemalloc.start()
    try:
        convert(source, tmp_path / "artifact")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * BLOCK_BYTES


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


NORM = "model.norm.weight"
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
    "dtypes mixed": (change_tensors(lambda t: t.update({NORM: np.zeros(64, np.float32)})), Unsupported, NORM),
    "tie broken": (lambda s: change_config(s, tie_word_embeddings=True), InvalidRequest, "lm_head.weight differs"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_answer_wrongly_is_refused(tmp_path: Path, case: str) -> None:
    """The message names the file, field or tensor, and nothing is written."""
    damage, kind, expected = REFUSED[case]
    source = write_tiny_checkpoint(tmp_path / "source")
    damage(source)
    with pytest.raises(kind, match=expected):
        convert(source, tmp_path / "artifact")
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
    with pytest.raises(NotFound):
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


def safetensors_bytes(header: object, data: bytes = bytes(8)) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


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
    ],
)
def test_a_malformed_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Truncated, overlapping, with gaps or nonsense: corrupt, by its name."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(content)
    with pytest.raises(CorruptData, match=r"model\.safetensors"):
        convert(source, tmp_path / "artifact")


def test_a_dtype_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """float64 is neither cut down nor misread."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(safetensors_bytes({"a": tensor(0, 8, [1], "F64")}))
    with pytest.raises(Unsupported, match="tensor a is F64"):
        convert(source, tmp_path / "artifact")


def test_converting_twice_is_converting_once(tmp_path: Path) -> None:
    """The same artifact may be asked for again; another one does not replace it."""
    first = convert(write_tiny_checkpoint(tmp_path / "one"), tmp_path / "artifact")
    assert first == convert(tmp_path / "one", tmp_path / "artifact")
    with pytest.raises(AlreadyExists, match="another artifact"):
        convert(write_tiny_checkpoint(tmp_path / "two", seed=2), tmp_path / "artifact")
    assert first == read_manifest(tmp_path / "artifact")
    assert {"one", "two", "artifact"} == {path.name for path in tmp_path.iterdir()}


def test_an_artifact_that_something_was_done_to_is_not_the_same(tmp_path: Path) -> None:
    """Who converts again may trust what is there: a foreign file in it, which no store takes, is said.

    Fault injection: Destination._holds looks at the manifest alone.
    """
    source = write_tiny_checkpoint(tmp_path / "source")
    convert(source, tmp_path / "artifact")
    (tmp_path / "artifact/notes.txt").write_text("precious")
    with pytest.raises(AlreadyExists, match=r"notes\.txt.*give another OUT"):
        convert(source, tmp_path / "artifact")


def test_a_destination_in_use_is_left_alone(tmp_path: Path) -> None:
    """Neither a file nor a directory with other things in it is touched; an empty directory is taken."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("precious")
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(AlreadyExists, match="give another OUT"):
            convert(source, tmp_path / name)
    assert convert(source, tmp_path / "empty") == read_manifest(tmp_path / "empty")


def test_a_disk_without_room_is_told_before_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Need and room, and nothing is written. Fault injection: `workshop` does not look."""
    source = write_tiny_checkpoint(tmp_path / "source")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(
        Overloaded, match=r"artifact needs \d+ bytes and its disk has 1000 left; remove"
    ) as refused:
        convert(source, tmp_path / "artifact")
    assert "DISK_FULL" == refused.value.reason
    assert [source] == list(tmp_path.iterdir())


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services.loader.convert", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_prints_the_id(tmp_path: Path) -> None:
    """Alone on standard output, for scripts."""
    source = write_tiny_checkpoint(tmp_path / "source")
    with start(source, tmp_path / "artifact", "--progress", "none") as command:
        out, err = command.communicate()
    assert (f"{read_manifest(tmp_path / 'artifact').id}\n", "", 0) == (out, err, command.returncode)


def test_the_command_tells_programs_of_progress_and_errors(tmp_path: Path) -> None:
    """One JSON object a line: bytes as they go, then the id, or else the error with kind and reason."""
    source = write_tiny_checkpoint(tmp_path / "source")
    with start(source, tmp_path / "artifact", "--progress", "json") as command:
        told = [json.loads(line) for line in command.communicate()[0].splitlines()]
    assert told[-2]["total_bytes"] == told[-2]["done_bytes"] > 0
    assert {"artifact_id": read_manifest(tmp_path / "artifact").id} == told[-1]
    (source / "config.json").unlink()
    with start(source, tmp_path / "other", "--progress", "json") as command:
        error = json.loads(command.communicate()[0].splitlines()[-1])["error"]
    assert (1, "InvalidRequest", "FILE_MISSING") == (command.returncode, error["kind"], error["reason"])
    with start(source, tmp_path / "other", "--progress", "none") as command:
        out, err = command.communicate()
    assert ("", 1) == (out, command.returncode)
    assert err.startswith("error: source: no config.json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_converter_that_is_stopped_leaves_no_artifact(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM clean up; what SIGKILL leaves is swept by the next conversion."""
    source = write_tiny_checkpoint(tmp_path / "source", MULTI_BLOCK)
    with start(source, tmp_path / "artifact", "--progress", "json") as command:
        assert command.stdout
        command.stdout.readline()  # it is in the middle of writing
        command.send_signal(number)
        command.stdout.read()
    left = {path.name for path in tmp_path.iterdir()} - {"source"}
    if "artifact" in left:  # it had finished before the signal came
        left.remove("artifact")
        assert convert(source, tmp_path / "artifact") == read_manifest(tmp_path / "artifact")
    if number is not signal.SIGKILL:
        assert set() == left
    convert(source, tmp_path / "artifact")
    assert {"source", "artifact"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("tokenizer.json", '{"a": 1}', r"tokenizer\.json cannot be read"),
        ("chat_template.jinja", "{% for message in messages %}", "the chat template cannot be read"),
        ("tokenizer_config.json", '{"chat_template": "{{ messages"}', "the chat template cannot be read"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default"}]}',
            "the chat template cannot be read",
        ),
        ("chat_template.jinja", b"\xff\xfe", "the chat template cannot be read"),
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
