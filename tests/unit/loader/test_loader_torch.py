"""PyTorch zip files are read as data: what they hold arrives, and no code of theirs runs."""

from __future__ import annotations

import collections
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.common.checkpoint.conversion_options import ConversionOptions
from services.common.checkpoint.dtype import DType
from services.common.errors import CorruptData, HalogenError, InvalidRequest, Unsupported
from services.loader.conversion import convert
from services.loader.source_tensor import SourceTensor, read_range
from services.loader.torch_file import read_table
from tests.tiny_checkpoints import TinyShape, random_tensors, write_tiny_checkpoint

TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}


PLAIN = TinyShape()


def state_dict(shape: TinyShape) -> dict[str, torch.Tensor]:
    dtype = TORCH_DTYPES[shape.dtype]
    return {name: torch.from_numpy(value).view(dtype) for name, value in random_tensors(shape, 0).items()}


def write_torch_checkpoint(
    directory: Path, value: Any, shape: TinyShape = PLAIN, name: str = "pytorch_model.bin"
) -> Path:
    """The tiny checkpoint with `value` saved in the place of its safetensors file."""
    source = write_tiny_checkpoint(directory, shape)
    (source / "model.safetensors").unlink()
    torch.save(value, source / name)
    return source


def content(tensor: SourceTensor) -> bytes:
    return b"".join(bytes(piece) for piece in tensor.pieces())


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_bin_and_safetensors_give_one_artifact(tmp_path: Path, dtype: DType) -> None:
    """Whichever file the same weights come in, the artifact's id is the same."""
    shape = TinyShape(dtype=dtype)
    expected = convert(write_tiny_checkpoint(tmp_path / "safetensors", shape), tmp_path / "a")
    source = write_torch_checkpoint(tmp_path / "torch", state_dict(shape), shape)
    assert expected.id == convert(source, tmp_path / "b").id


def test_shards_and_other_names_are_read(tmp_path: Path) -> None:
    """An index of .bin files; one .pt file of any name, with the trainer's files beside it left out."""
    weights = state_dict(TinyShape())
    expected = convert(write_tiny_checkpoint(tmp_path / "safetensors"), tmp_path / "a").id
    sharded = write_torch_checkpoint(tmp_path / "sharded", {}, name="unused")
    names = list(weights)
    shards = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for file, part in shards.items():
        torch.save({name: weights[name] for name in part}, sharded / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert expected == convert(sharded, tmp_path / "b").id
    single = write_torch_checkpoint(tmp_path / "single", weights, name="weights.pt")
    torch.save({"step": 1}, single / "optimizer.pt")
    (single / "training_args.bin").write_bytes(b"anything")
    notes: list[str] = []
    assert expected == convert(single, tmp_path / "c", note=notes.append).id
    assert "optimizer.pt, training_args.bin" in notes[0]


def training_checkpoint() -> dict[str, Any]:
    return {
        "model": collections.OrderedDict(state_dict(TinyShape())),
        "optimizer": {
            "state": {0: {"exp_avg": torch.ones(10), "step": torch.tensor(3)}},
            "groups": [{"lr": 0.1}],
        },
        "epoch": 3,
    }


def test_training_state_is_dropped_and_named(tmp_path: Path) -> None:
    """48 bytes of it here; who wants it kept is told that there is no place for it."""
    expected = convert(write_tiny_checkpoint(tmp_path / "safetensors"), tmp_path / "a").id
    source = write_torch_checkpoint(tmp_path / "source", training_checkpoint())
    notes: list[str] = []
    assert expected == convert(source, tmp_path / "b", note=notes.append).id
    assert ["dropped training state, 48 bytes: epoch, optimizer"] == notes
    with pytest.raises(InvalidRequest, match="--drop-optimizer-state") as refused:
        convert(source, tmp_path / "c", options=ConversionOptions(drop_optimizer_state=False))
    assert "TRAINING_STATE" == refused.value.reason


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    """It shares the storage of the embedding there, and is left out here."""
    shape = TinyShape(tie_word_embeddings=True)
    expected = convert(write_tiny_checkpoint(tmp_path / "safetensors", shape), tmp_path / "a").id
    weights = state_dict(shape)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    source = write_torch_checkpoint(tmp_path / "torch", weights, shape)
    assert expected == convert(source, tmp_path / "b").id


def test_a_view_is_read_from_its_own_place(tmp_path: Path) -> None:
    """Two tensors in one storage keep their offsets."""
    whole = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    torch.save({"a": whole[1:3], "b": whole[0]}, tmp_path / "m.bin")
    table = read_table(tmp_path / "m.bin").tensors
    assert whole[1:3].numpy().tobytes() == content(table["a"])
    assert ((3,), whole[0].numpy().tobytes()) == (table["b"].shape, content(table["b"]))


def test_only_a_weight_must_be_as_it_is_stored(tmp_path: Path) -> None:
    """What only training needs is dropped, negated views and all; a negated weight that was resolved is read."""
    negated = torch._neg_view(torch.arange(4).float())
    torch.save({"model": {"a": negated.resolve_neg()}, "optimizer": {"state": negated}}, tmp_path / "m.bin")
    tensors = read_table(tmp_path / "m.bin").tensors
    assert {"a": negated.resolve_neg().numpy().tobytes()} == {
        name: content(tensors[name]) for name in tensors
    }


def rewrite(path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, record in records.items():
            archive.writestr(name, change(name, record))


def shorten(name: str, record: bytes) -> bytes:
    return record[:-4] if "/data/" in name else record


DAMAGED: dict[str, tuple[Callable[[Path], object], type[HalogenError], str]] = {
    "legacy": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        InvalidRequest,
        "legacy format.*weights_only=True",
    ),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-30]), CorruptData, "fetch it again"),
    "compressed": (lambda path: rewrite(path, lambda _, r: r, zipfile.ZIP_DEFLATED), CorruptData, "compressed"),
    "storage short": (lambda path: rewrite(path, shorten), CorruptData, "beyond its storage"),
    "big-endian": (
        lambda path: rewrite(path, lambda name, r: b"big" if name.endswith("byteorder") else r),
        Unsupported,
        "big-endian",
    ),
    "other zip": (lambda path: zipfile.ZipFile(path, "w").close(), CorruptData, "not a PyTorch zip file"),
    "no pickle": (
        lambda path: rewrite(path, lambda name, r: b"" if name.endswith("data.pkl") else r),
        CorruptData,
        r"m\.bin: its data\.pkl cannot be read .*; fetch the file again",
    ),
    "no weights": (lambda path: torch.save({"a": 1}, path), InvalidRequest, "holds no weights"),
    "a list": (lambda path: torch.save([torch.ones(2)], path), InvalidRequest, "no state_dict"),
    "int64": (lambda path: torch.save({"a": torch.tensor([1])}, path), Unsupported, "LongStorage"),
    "transposed": (lambda path: torch.save({"a": torch.ones(2, 3).T}, path), Unsupported, "contiguous"),
    "negated": (
        lambda path: torch.save({"a": torch._neg_view(torch.ones(2))}, path),
        Unsupported,
        r"tensor a is a view that torch negates.*; save it after \.resolve_neg\(\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_no_whole_zip_of_weights_is_refused(tmp_path: Path, case: str) -> None:
    """The message names the file and says what to do.

    Fault injection: "negated" turns red when `_rebuild` drops a tensor's metadata.
    """
    damage, kind, expected = DAMAGED[case]
    path = tmp_path / "m.bin"
    torch.save({"a": torch.ones(4)}, path)
    damage(path)
    with pytest.raises(kind, match=expected) as refused:
        read_table(path)
    assert "m.bin" in refused.value.message


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    """Between its table and its bytes, too."""
    torch.save({"a": torch.ones(4)}, tmp_path / "m.bin")
    tensor = read_table(tmp_path / "m.bin").tensors["a"]
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(CorruptData, match="ends inside tensor a"):
        content(tensor)


def flip_a_bit(path: Path, record: str) -> None:
    """In the middle of a record of a zip file, which stays a zip file."""
    with zipfile.ZipFile(path) as archive, path.open("r+b") as file:
        content = archive.read(record)
        whole = path.read_bytes()
        at = whole.index(content) + len(content) // 2
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))


def read_all(path: Path) -> list[bytes]:
    return [content(tensor) for tensor in read_table(path).tensors.values()]


@pytest.mark.parametrize("record", ["data.pkl", "data/0", "data/1"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, record: str) -> None:
    """The sums of the zip file are held against all that is read, be it one tensor or some of a storage.

    Fault injection: turns red when `_locate` leaves the sum out, or `read_table` checks no storage that is used in part.
    """
    whole, part = torch.arange(1, 1025).float(), torch.arange(4096).float()
    path = tmp_path / "model.pt"
    torch.save({"whole": whole, "part": part[:1024]}, path)
    assert {"whole", "part"} == read_table(path).tensors.keys()
    flip_a_bit(path, f"model/{record}")
    with pytest.raises(CorruptData, match=r"model\.pt: .* does not match its CRC-32; fetch the file again"):
        read_all(path)


def test_a_storage_is_checked_once_however_many_tensors_lie_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flattened parameters are thousands of views of one storage.

    Fault injection: turns red when each of them has its storage checked.
    """
    read: list[str] = []

    def counted(path: Path, name: str, *where: int) -> Iterator[memoryview]:
        read.append(name)
        return read_range(path, name, *where)

    monkeypatch.setattr("services.loader.torch_file.read_range", counted)
    flat = torch.arange(64 * 16).float()
    torch.save({f"part.{i}": flat[16 * i : 16 * i + 16] for i in range(64)}, tmp_path / "model.pt")
    assert 64 == len(read_table(tmp_path / "model.pt").tensors)
    assert 1 == read.count("data/0")
