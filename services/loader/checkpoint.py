"""A checkpoint that can become an artifact: every tensor its configuration asks for, and no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions, QuantPolicy
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD, decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import Storage, TensorSpec
from services.common.checkpoint.requirements import Hosts
from services.common.errors import InvalidRequest, Unsupported
from services.loader import training_state
from services.loader.json_object import parse_object
from services.loader.quant_policy import apply_policy
from services.loader.raw_checkpoint import RawCheckpoint
from services.loader.source_tensor import SourceTensor
from services.loader.sources import read_source
from services.loader.tensor_parallel import check_shares
from services.loader.text_files import (
    check_generation_config,
    check_representative_requests,
    check_text_files,
)

_REMEDY: Final = "fetch config.json and weights again, from one place"
_DERIVED_SUFFIX: Final = ".rotary_emb.inv_freq"  # old checkpoints store what the configuration implies


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is to be stored, and where it comes from.

    Attributes:
        small_files: Name to content of every file that an artifact keeps beside the weights.
        specs: The tensors in the order in which they are to be stored.
        sources: Each as it is in the source.
        tensors: Each in the dtype in which it is to be stored.
        storage: How they are meant to be divided; they can be.
        hosts: Where the result may be served.
        notes: What a person should know of the conversion, a line each.
    """

    architecture: Architecture
    small_files: Mapping[str, bytes]
    specs: tuple[TensorSpec, ...]
    sources: Mapping[str, SourceTensor]
    tensors: Mapping[str, SourceTensor]
    storage: Storage
    hosts: Hosts
    notes: tuple[str, ...]

    @property
    def stored_bytes(self) -> int:
        """What it takes as an artifact, but for headers and padding."""
        return sum(spec.nbytes for spec in self.specs) + sum(map(len, self.small_files.values()))

    @classmethod
    def open(cls, source: Path, options: ConversionOptions = DEFAULTS) -> Self:
        """Reads and checks everything but the tensors' bytes.

        Raises:
            NotFound: There is nothing at `source`.
            InvalidRequest: A file or tensor is missing, extra or mis-shaped, or the options do not fit it.
            Unsupported: This build cannot serve such a model.
            CorruptData: A file is not what its name says.
        """
        raw = read_source(source)
        check_text_files(raw.small_files)
        notes = _drop_training_state(raw, options)
        config = parse_object("config.json", raw.small_files["config.json"])
        _check_config(config)
        sources, tie_notes = _without_redundant(raw.table.tensors, config)
        tensors, policy_notes = apply_policy(sources, options.quant_policy)
        architecture = _read_architecture(config, tensors)
        check_generation_config(raw.small_files, config)
        check_representative_requests(raw.small_files)
        specs = decoder_tensors(architecture)
        _check_tensors(specs, tensors)
        check_shares(architecture, specs, options.storage)
        return cls(
            architecture=architecture,
            small_files=raw.small_files,
            specs=specs,
            sources=sources,
            tensors=tensors,
            storage=options.storage,
            hosts=options.hosts(raw.hosts),
            notes=(*notes, *tie_notes, *policy_notes),
        )


def _drop_training_state(raw: RawCheckpoint, options: ConversionOptions) -> tuple[str, ...]:
    if not raw.table.dropped:
        return ()
    what = training_state.describe(raw.table.dropped)
    if not options.drop_optimizer_state:
        raise InvalidRequest(
            f"the source holds {what}; an artifact has no place for it: convert with --drop-optimizer-state",
            reason="TRAINING_STATE",
        )
    return (f"dropped {what}",)


def _check_config(config: Mapping[str, Any]) -> None:
    """Refuses what the engine cannot run before any tensor is looked at; the dtype does not matter yet."""
    try:
        Architecture.from_config(config, DType.BF16)
    except ValueError as fault:
        raise InvalidRequest(
            f"config.json: {fault}; fetch it again, or write it with save_pretrained", reason="CONFIG_INVALID"
        ) from None


def _without_redundant(
    tensors: Mapping[str, SourceTensor], config: Mapping[str, Any]
) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """Without what the configuration implies and a tied head's own copy; what was left out, in words."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(_DERIVED_SUFFIX)}
    if not (config.get("tie_word_embeddings") and HEAD in kept and EMBEDDING in kept):
        return kept, ()
    head = kept.pop(HEAD)
    if not _are_equal(head, kept[EMBEDDING]):
        raise InvalidRequest(
            f"{HEAD} differs from {EMBEDDING}, yet config.json ties them; set tie_word_embeddings to false",
            reason="TIE_BROKEN",
        )
    return kept, (f"{HEAD} is tied to {EMBEDDING}, and stored once",)


def _are_equal(one: SourceTensor, other: SourceTensor) -> bool:
    if (one.dtype, one.shape, one.encoding) != (other.dtype, other.shape, other.encoding):
        return False
    return all(bytes(a) == bytes(b) for a, b in zip(one.pieces(), other.pieces(), strict=True))


def _read_architecture(config: Mapping[str, Any], tensors: Mapping[str, SourceTensor]) -> Architecture:
    if EMBEDDING not in tensors:
        raise InvalidRequest(f"missing tensors: {EMBEDDING}; {_REMEDY}", reason="TENSOR_MISSING")
    dtype = tensors[EMBEDDING].dtype
    for tensor in tensors.values():
        if tensor.dtype is not dtype:
            raise Unsupported(
                f"tensor {tensor.name} is {tensor.dtype}, {EMBEDDING} is {dtype}, and an engine computes with one "
                f"dtype; give the DST that comes of: {QuantPolicy.BF16.command} (or fp16, fp32)",
                reason="MIXED_DTYPES",
            )
    return Architecture.from_config(config, dtype)


def _check_tensors(specs: tuple[TensorSpec, ...], tensors: Mapping[str, SourceTensor]) -> None:
    wanted = {spec.name: spec.shape for spec in specs}
    if missing := [name for name in wanted if name not in tensors]:
        raise InvalidRequest(f"missing tensors: {_some(missing)}; {_REMEDY}", reason="TENSOR_MISSING")
    if extra := [name for name in tensors if name not in wanted]:
        raise InvalidRequest(
            f"tensors that config.json leaves no place for: {_some(extra)}; {_REMEDY}", reason="TENSOR_EXTRA"
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise InvalidRequest(
                f"tensor {name} has shape {list(tensors[name].shape)}, and config.json asks for {list(shape)}; {_REMEDY}",
                reason="TENSOR_SHAPE",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
