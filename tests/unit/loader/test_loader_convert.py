"""The converter: exact bytes, nothing missing, nothing extra, there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.errors import AlreadyExists, HalogenError, InvalidRequest, Overloaded
from services.loader.conversion import convert
from services.loader.mounts import Mount
from tests.tiny_checkpoints import (
    MULTI_BLOCK,
    STORIES,
    TinyShape,
    random_tensors,
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
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors)
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


def test_an_artifact_takes_no_other_into_its_directory(tmp_path: Path) -> None:
    """It would be of no use from then on; a manifest.json that is not an artifact's says nothing.

    Fault injection: turns red when `_check_folders` looks at no artifact above, or at a manifest.json alone.
    """
    source = write_tiny_checkpoint(tmp_path / "source")
    (tmp_path / "manifest.json").write_text("{}")
    convert(source, tmp_path / "artifact")
    for below in ("artifact/b", "artifact/b/c", "source/../artifact/b"):
        with pytest.raises(InvalidRequest, match=r"would lie in the artifact artifact, .*; give another OUT"):
            convert(source, tmp_path / below)
    assert convert(source, tmp_path / "artifact") == read_manifest(tmp_path / "artifact")


@pytest.mark.parametrize("mount", ["/", "/proc"])
def test_the_place_of_a_mount_is_not_taken(tmp_path: Path, mount: str) -> None:
    """It could not be renamed over, which would show after all the work.

    Fault injection: turns red when `_check_free` does not ask whether it is one.
    """
    with pytest.raises(InvalidRequest, match=f"{mount} is a mount point .*; give a directory inside it"):
        convert(tmp_path / "no source is looked for", Path(mount))


def test_the_place_of_a_bind_mount_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the device of the folder above it: only the kernel's list tells.

    Fault injection: turns red when `_check_free` asks os.path.ismount.
    """
    bound = tmp_path / "bound"
    bound.mkdir()
    monkeypatch.setattr(
        "services.loader.destination.read_mounts", lambda: (Mount(bound, "ext4", frozenset()),)
    )
    (tmp_path / "way").symlink_to(".")
    for out in (bound, tmp_path / "way/bound"):
        with pytest.raises(InvalidRequest, match="bound is a mount point"):
            convert(tmp_path / "no source is looked for", out)


def test_the_place_of_a_link_is_not_taken(tmp_path: Path) -> None:
    """No directory can be renamed over it, wherever it leads. Fault injection: `_check_free` follows links."""
    (tmp_path / "empty").mkdir()
    for name, leads in (("full", "empty"), ("dead", "nowhere")):
        (tmp_path / name).symlink_to(leads)
        with pytest.raises(InvalidRequest, match=f"{name} is a mount point or a link"):
            convert(tmp_path / "no source is looked for", tmp_path / name)


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, Overloaded, "make room there, for bytes and for files, or give another OUT"),
        (errno.EROFS, InvalidRequest, "give an OUT that you may write"),
        (errno.EIO, InvalidRequest, "give another OUT"),
    ],
)
def test_a_file_that_cannot_be_made_is_told_as_the_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[HalogenError], remedy: str
) -> None:
    """A small file, on a disk that has no inode left, say: OUT is named, not the hidden folder, and what to do.

    Fault injection: turns red when `workshop` lets an OSError of its files through.
    """
    source = write_tiny_checkpoint(tmp_path / "source")

    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("services.loader.conversion.sync", refuse)
    with pytest.raises(kind) as refused:
        convert(source, tmp_path / "artifact")
    expected = f"artifact cannot be made in {tmp_path.name} ({os.strerror(number)}); {remedy}"
    assert expected == refused.value.message
    assert [source] == list(tmp_path.iterdir())


def test_a_name_that_is_too_long_is_said(tmp_path: Path) -> None:
    """For the disk, or with what is added to it meanwhile. Fault injection: turns red without ENAMETOOLONG's remedy."""
    source = write_tiny_checkpoint(tmp_path / "source")
    for length in (240, 300):
        with pytest.raises(InvalidRequest, match=rf"{'x' * length} cannot be made .*; give a shorter OUT"):
            convert(source, tmp_path / ("x" * length))


def test_where_no_file_can_be_made_is_said_and_not_called_full(tmp_path: Path) -> None:
    """/proc says that it has no room at all, and would take nothing if it had.

    Fault injection: turns red when `_check_room` believes a total of 0.
    """
    source = write_tiny_checkpoint(tmp_path / "source")
    with pytest.raises(InvalidRequest, match=r"artifact cannot be made in proc .*; give an"):
        convert(source, Path("/proc/artifact"))


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


@pytest.mark.usefixtures("signals_as_in_a_terminal")
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
