"""A Hugging Face checkpoint directory as a source: safetensors or PyTorch zip files, one or many, and the small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from services.common.checkpoint.manifest import MAX_SMALL_FILE_BYTES, PATHS, REQUIRED_ROLES, Role
from services.common.checkpoint.plain_path import check_path
from services.common.errors import CorruptData, InvalidRequest
from services.loader import safetensors_file, torch_file
from services.loader.json_object import parse_object
from services.loader.raw_checkpoint import RawCheckpoint
from services.loader.source_file import is_there
from services.loader.source_tensor import SourceTensor, Table
from services.loader.training_state import is_training_file


class _Layout(NamedTuple):
    """How weights of one format are named, and what reads one file of them."""

    index_name: str
    single_name: str
    read_table: Callable[[Path], Table]


_LAYOUTS: Final = (  # by preference: where both are there, they are the same weights
    _Layout("model.safetensors.index.json", "model.safetensors", safetensors_file.read_table),
    _Layout("pytorch_model.bin.index.json", "pytorch_model.bin", torch_file.read_table),
)
_TORCH_SUFFIXES: Final = (".bin", ".pt", ".pth")
_REMEDY: Final = "fetch the index and its files again, from one place"


def read_hugging_face(directory: Path) -> RawCheckpoint:
    """Reads everything but the tensors' bytes.

    Raises:
        InvalidRequest: There are no weights, or a file is missing.
        Unsupported: A tensor cannot be converted.
        CorruptData: A file is not what its name says.
    """
    table = _read_weights(directory)
    training_files = {
        path.name: path.stat().st_size
        for path in directory.iterdir()
        if is_training_file(path.name) and path.is_file()
    }
    return RawCheckpoint(_read_small_files(directory), Table(table.tensors, table.dropped | training_files))


def _read_weights(directory: Path) -> Table:
    for layout in _LAYOUTS:
        if is_there(directory / layout.index_name):
            return _read_sharded(directory, layout)
        if is_there(directory / layout.single_name):
            return layout.read_table(directory / layout.single_name)
    single = [path for path in sorted(directory.iterdir()) if _may_be_weights(path)]
    if len(single) != 1:
        known = ", ".join(name for layout in _LAYOUTS for name in (layout.single_name, layout.index_name))
        raise InvalidRequest(
            f"{directory.name}: none of {known}, and {len(single)} other PyTorch files (one would do); give a "
            "Hugging Face directory, a GGUF file or an artifact",
            reason="WRONG_FORMAT",
        )
    return torch_file.read_table(single[0])


def _may_be_weights(path: Path) -> bool:
    return path.suffix in _TORCH_SUFFIXES and path.is_file() and not is_training_file(path.name)


def _read_small_files(directory: Path) -> dict[str, bytes]:
    found = {}
    for role, name in PATHS.items():
        if role is Role.WEIGHTS:
            continue
        if is_there(directory / name):
            found[name] = _read_small(directory / name)
        elif role in REQUIRED_ROLES:
            raise InvalidRequest(
                f"{directory.name}: no {name}; write it with save_pretrained of the model or its (fast) tokenizer",
                reason="FILE_MISSING",
            )
    return found


def _read_small(path: Path) -> bytes:
    size_bytes = path.stat().st_size
    if not 1 <= size_bytes <= MAX_SMALL_FILE_BYTES:
        raise InvalidRequest(
            f"{path.name}: {size_bytes} bytes, not 1 to {MAX_SMALL_FILE_BYTES}; fetch it again",
            reason="FILE_SIZE",
        )
    content = path.read_bytes()
    if path.suffix == ".json":
        parse_object(path.name, content)
    return content


def _read_sharded(directory: Path, layout: _Layout) -> Table:
    """The tensors of every file that the index names, which must be those that it names."""
    weight_map = _read_weight_map(directory / layout.index_name)
    tensors: dict[str, SourceTensor] = {}
    dropped: dict[str, int] = {}
    places: dict[str, str] = {}
    for name in sorted(set(weight_map.values())):
        table = layout.read_table(_shard(directory, layout.index_name, name))
        if twice := tensors.keys() & table.tensors.keys():
            raise CorruptData(f"{name}: tensor {min(twice)} is in another file too; {_REMEDY}")
        tensors |= table.tensors
        dropped |= table.dropped
        places |= dict.fromkeys((*table.tensors, *table.dropped), name)
    for tensor, name in weight_map.items():
        if places.get(tensor) != name:
            raise CorruptData(f"{layout.index_name}: tensor {tensor} is not in {name}; {_REMEDY}")
    if silent := tensors.keys() - weight_map.keys():
        unnamed = min(silent)
        raise CorruptData(f"{layout.index_name}: says nothing of {unnamed} in {places[unnamed]}; {_REMEDY}")
    return Table(tensors, dropped)


def _read_weight_map(index: Path) -> dict[str, str]:
    """Tensor to file."""
    weight_map = parse_object(index.name, _read_small(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CorruptData(f"{index.name}: no weight_map from tensors to files; {_REMEDY}")
    return weight_map


def _shard(directory: Path, index: str, name: str) -> Path:
    try:
        check_path(name)
    except ValueError as fault:
        raise CorruptData(f"{index}: {fault}; {_REMEDY}") from None
    if "/" in name or not is_there(directory / name):
        raise InvalidRequest(
            f"{index} names {name}, which is not there; fetch it too, from where the others came",
            reason="FILE_MISSING",
        )
    return directory / name
