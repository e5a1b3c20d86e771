"""A Hugging Face checkpoint directory as a source: its configuration, its tensors, its small files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD, decoder_tensors
from services.common.checkpoint.file_format import RECOGNISED_BYTES, FileFormat, recognise
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.manifest import MAX_SMALL_FILE_BYTES, PATHS, REQUIRED_ROLES, Role, check_path
from services.common.errors import CorruptData, InvalidRequest, NotFound, Unsupported
from services.loader.safetensors_file import SourceTensor, read_table
from services.loader.text_files import check_text_files

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_DERIVED_SUFFIX: Final = ".rotary_emb.inv_freq"  # old checkpoints store what the configuration implies

_OTHER_FORMATS: Final = {  # by a file's presence: what the directory holds instead, and what to do
    "*.halogen": "it holds a v2 artifact already; publish it: halogen publish",
    "*.gguf": "it holds a GGUF file; first: python -m services.loader.gguf FILE.gguf DIR",
    "*.bin": "it holds PyTorch .bin files; save them as safetensors first: "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR, safe_serialization=True)",
}
_FILE_ADVICE: Final = {
    FileFormat.V2: "a v2 weight file already; publish its artifact directory: halogen publish",
    FileFormat.GGUF: "a GGUF file; first: python -m services.loader.gguf FILE.gguf DIR",
}


@dataclasses.dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """A checkpoint that has every tensor its configuration asks for, and no other.

    Attributes:
        small_files: Name to content of every file that an artifact keeps beside the weights.
        specs: The tensors in the order in which they are to be stored.
        tensors: Where each lies now.
        dropped: Names that are not stored: tied or derived.
    """

    architecture: Architecture
    small_files: Mapping[str, bytes]
    specs: tuple[TensorSpec, ...]
    tensors: Mapping[str, SourceTensor]
    dropped: tuple[str, ...]

    @classmethod
    def open(cls, directory: Path) -> HuggingFaceSource:
        """Reads and checks everything but the tensors' bytes.

        Raises:
            NotFound: There is no such directory.
            InvalidRequest: It is another format, or a file or tensor is missing, extra or mis-shaped.
            Unsupported: This build cannot serve such a model.
            CorruptData: A file is not what its name says.
        """
        _refuse_other_formats(directory)
        small_files = _read_small_files(directory)
        check_text_files(small_files)
        tensors = _read_tables(directory)
        architecture = _read_architecture(small_files, tensors)
        dropped = _droppable(tensors, architecture)
        kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
        specs = decoder_tensors(architecture)
        _check_tensors(specs, kept)
        return cls(architecture, small_files, specs, kept, dropped)


def _refuse_other_formats(directory: Path) -> None:
    if directory.is_file():
        with directory.open("rb") as file:
            advice = _FILE_ADVICE.get(recognise(file.read(RECOGNISED_BYTES)), "a file; give its directory")
        raise InvalidRequest(f"{directory.name} is {advice}", reason="WRONG_FORMAT")
    if not directory.is_dir():
        raise NotFound(f"{directory.name}: no such directory")
    if (directory / _SINGLE).is_file() or (directory / _INDEX).is_file():
        return
    for pattern, advice in _OTHER_FORMATS.items():
        if any(directory.glob(pattern)):
            raise InvalidRequest(f"{directory.name}: {advice}", reason="WRONG_FORMAT")
    raise InvalidRequest(
        f"{directory.name}: neither {_SINGLE} nor {_INDEX} is there; give a Hugging Face directory",
        reason="WRONG_FORMAT",
    )


def _read_small_files(directory: Path) -> dict[str, bytes]:
    found = {}
    for role, name in PATHS.items():
        if role is Role.WEIGHTS:
            continue
        if (directory / name).is_file():
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
        raise InvalidRequest(f"{path.name}: {size_bytes} bytes; the most is {MAX_SMALL_FILE_BYTES}")
    content = path.read_bytes()
    if path.suffix == ".json":
        _parse_object(path.name, content)
    return content


def _parse_object(name: str, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise CorruptData(f"{name}: not JSON ({fault})") from None
    if not isinstance(value, dict):
        raise CorruptData(f"{name}: not a JSON object")
    return value


def _read_tables(directory: Path) -> dict[str, SourceTensor]:
    """The tensors of the one file, or of every file that the index names."""
    index_path = directory / _INDEX
    if not index_path.is_file():
        return read_table(directory / _SINGLE)
    weight_map = _parse_object(_INDEX, _read_small(index_path)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CorruptData(f"{_INDEX}: no weight_map from tensors to files")
    tensors: dict[str, SourceTensor] = {}
    for name in sorted(set(weight_map.values())):
        table = read_table(_shard(directory, name))
        if twice := tensors.keys() & table.keys():
            raise CorruptData(f"{name}: tensor {min(twice)} is in another file too")
        tensors |= table
    for tensor, name in weight_map.items():
        if tensor not in tensors or tensors[tensor].path.name != name:
            raise CorruptData(f"{_INDEX}: tensor {tensor} is not in {name}")
    return tensors


def _shard(directory: Path, name: str) -> Path:
    try:
        check_path(name)
    except ValueError as fault:
        raise CorruptData(f"{_INDEX}: {fault}") from None
    if "/" in name or not (directory / name).is_file():
        raise InvalidRequest(f"{_INDEX} names {name}, which is not there", reason="FILE_MISSING")
    return directory / name


def _read_architecture(small_files: Mapping[str, bytes], tensors: Mapping[str, SourceTensor]) -> Architecture:
    config = _parse_object("config.json", small_files["config.json"])
    if EMBEDDING not in tensors:
        raise InvalidRequest(f"tensor {EMBEDDING} is missing", reason="TENSOR_MISSING")
    dtype = tensors[EMBEDDING].dtype
    for tensor in tensors.values():
        if tensor.dtype is not dtype and not tensor.name.endswith(_DERIVED_SUFFIX):
            raise Unsupported(
                f"tensor {tensor.name} is {tensor.dtype}, {EMBEDDING} is {dtype}; "
                "save the checkpoint in one dtype: save_pretrained after model.to(dtype)",
                reason="MIXED_DTYPES",
            )
    try:
        return Architecture.from_config(config, dtype)
    except ValueError as fault:
        raise InvalidRequest(f"config.json: {fault}", reason="CONFIG_INVALID") from None


def _droppable(tensors: Mapping[str, SourceTensor], architecture: Architecture) -> tuple[str, ...]:
    derived = [name for name in tensors if name.endswith(_DERIVED_SUFFIX)]
    if not (architecture.tie_word_embeddings and HEAD in tensors):
        return tuple(derived)
    if not _are_equal(tensors[HEAD], tensors[EMBEDDING]):
        raise InvalidRequest(
            f"{HEAD} differs from {EMBEDDING}, yet config.json ties them; set tie_word_embeddings to false",
            reason="TIE_BROKEN",
        )
    return (*derived, HEAD)


def _are_equal(one: SourceTensor, other: SourceTensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(a == b for a, b in zip(one.pieces(), other.pieces(), strict=True))


def _check_tensors(specs: tuple[TensorSpec, ...], tensors: Mapping[str, SourceTensor]) -> None:
    wanted = {spec.name: spec.shape for spec in specs}
    if missing := [name for name in wanted if name not in tensors]:
        raise InvalidRequest(f"missing tensors: {_some(missing)}", reason="TENSOR_MISSING")
    if extra := [name for name in tensors if name not in wanted]:
        raise InvalidRequest(
            f"tensors that config.json leaves no place for: {_some(extra)}", reason="TENSOR_EXTRA"
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise InvalidRequest(
                f"tensor {name} has shape {list(tensors[name].shape)}; config.json asks for {list(shape)}",
                reason="TENSOR_SHAPE",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
