"""The tensors of an artifact, bound to the places where the decoder uses them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal, NoReturn

import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD, decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorEntry
from services.common.errors import Cancelled, CorruptData, Unsupported
from services.engine.model.llama_weights import LayerWeights, LlamaWeights
from services.engine.model.packed_weights import PackedBinder, check_packed

DTypeChoice = Literal["auto", "bfloat16", "float32"]

PRECISIONS: Final[
    Mapping[DTypeChoice, frozenset[DType]]
] = {  # of stored weights, by what an engine computes in
    "auto": frozenset({DType.BF16, DType.FP16, DType.FP32}),
    "bfloat16": frozenset({DType.BF16}),
    "float32": frozenset({DType.BF16, DType.FP16, DType.FP32}),
}

_TORCH: Final = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}


def stored_dtype(header: Header) -> DType:
    """The one dtype of all tensors.

    Raises:
        Unsupported: There is more than one, or one that no kernel here computes with.
    """
    kinds = {entry.dtype for entry in header.layout.entries}
    if len(kinds) != 1:
        raise Unsupported(f"weights: tensors of {sorted(kinds)} in one file; convert them to one dtype")
    if not kinds <= _TORCH.keys():
        raise Unsupported(f"weights: this engine does not compute with {min(kinds)}; convert them to bf16")
    return kinds.pop()


def compute_dtype(stored: DType, choice: DTypeChoice) -> DType:
    """What an engine computes in: no kernel computes in fp16, all of whose values fp32 has."""
    return DType.FP32 if choice == "float32" or stored is DType.FP16 else stored


def copied_bytes(header: Header, dtype: DTypeChoice) -> int:
    """The memory that `bind` takes for copies; none for tensors that are used in place."""
    entries = header.layout.entries
    copied = [entry for entry in entries if compute_dtype(entry.dtype, dtype) is not entry.dtype]
    return sum(DType.FP32.nbytes(entry.shape) for entry in copied)


def check_tensors(header: Header, architecture: Architecture, dtype: DTypeChoice) -> None:
    """Raises what `bind` would, as far as the header tells.

    Raises:
        CorruptData: A tensor is missing, left over or of another shape than `architecture` has it.
        Unsupported: The weights cannot be used in that dtype without a copy.
    """
    if header.derived:
        check_packed(header, architecture)
    else:
        _check_shapes(header.tensors, architecture)
    _check_dtype(architecture.dtype, dtype)


def bind(
    mapped: torch.Tensor,
    header: Header,
    architecture: Architecture,
    dtype: DTypeChoice,
    *,
    stop: threading.Event | None = None,
    rest: Callable[[], None] = lambda: None,
) -> LlamaWeights:
    """Makes the weights' views of the mapping.

    Args:
        mapped: The whole file, [bytes] of uint8, never written to.
        header: Its header.
        architecture: What the artifact's config.json describes.
        dtype: "float32" copies weights stored in less; anything else uses them in place, but for fp16, which is copied.
            What is packed is always used in place.
        stop: Calls it off between two tensors.
        rest: Called after every tensor.

    Raises:
        CorruptData, Unsupported: As `check_tensors` does.
        Cancelled: It was called off.
    """
    check_tensors(header, architecture, dtype)
    stop = stop or threading.Event()
    if header.derived:
        return PackedBinder(mapped, header, header.derived, stop, rest).bind(architecture)
    made_in = _TORCH[compute_dtype(architecture.dtype, dtype)]
    return _Binder(mapped, header, made_in, stop, rest).bind(architecture)


def _check_dtype(stored: DType, choice: DTypeChoice) -> None:
    if stored not in PRECISIONS[choice]:
        raise Unsupported(
            f"weights stored in {stored} cannot be used with --dtype {choice}; take --dtype auto or float32, or "
            "convert the checkpoint to bf16",
            reason="DTYPE_UNSUPPORTED",
        )


def _check_shapes(tensors: Mapping[str, TensorEntry], architecture: Architecture) -> None:
    expected = {spec.name: spec.shape for spec in decoder_tensors(architecture)}
    for name in sorted(expected.keys() - tensors.keys()):
        _refuse(f"tensor {name} is missing")
    for name in sorted(tensors.keys() - expected.keys()):
        _refuse(f"tensor {name} belongs to no such model")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            _refuse(f"tensor {name} has shape {tensors[name].shape}, config.json says {shape}")


def _refuse(what: str) -> NoReturn:
    raise CorruptData(f"weights: {what}; convert the checkpoint again", reason="TENSORS_MISMATCH")


class _Binder:
    """Views of one mapping, in one dtype."""

    def __init__(
        self,
        mapped: torch.Tensor,
        header: Header,
        dtype: torch.dtype,
        stop: threading.Event,
        rest: Callable[[], None],
    ) -> None:
        self._stop = stop
        self._rest = rest
        self._mapped = mapped
        self._tensors = header.tensors
        self._dtype = dtype

    def bind(self, architecture: Architecture) -> LlamaWeights:
        embedding = self._view(EMBEDDING)
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(
                self._layer(f"model.layers.{i}.", has_qkv_bias=architecture.has_qkv_bias)
                for i in range(architecture.num_hidden_layers)
            ),
            norm=self._view("model.norm.weight"),
            head=embedding if architecture.tie_word_embeddings else self._view(HEAD),
        )

    def _layer(self, prefix: str, *, has_qkv_bias: bool) -> LayerWeights:
        def view(*names: str, kind: str = "weight") -> torch.Tensor:
            return self._view(*(f"{prefix}{name}.{kind}" for name in names))

        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return LayerWeights(
            attention_norm=view("input_layernorm"),
            qkv=view(*qkv),
            qkv_bias=view(*qkv, kind="bias") if has_qkv_bias else None,
            output=view("self_attn.o_proj"),
            mlp_norm=view("post_attention_layernorm"),
            gate_up=view("mlp.gate_proj", "mlp.up_proj"),
            down=view("mlp.down_proj"),
        )

    def _view(self, *names: str) -> torch.Tensor:
        """One matrix of tensors that lie back to back, row after row; copied only to another dtype."""
        if self._stop.is_set():
            raise Cancelled("the load was called off")
        entries = [self._tensors[name] for name in names]
        for before, entry in itertools.pairwise(entries):
            if entry.offset != before.end:
                _refuse(f"tensor {entry.name} does not follow {before.name}")
        stored = self._mapped[entries[0].offset : entries[-1].end].view(_TORCH[entries[0].dtype])
        rows = sum(entry.shape[0] for entry in entries)
        made = stored.view(rows, *entries[0].shape[1:]).to(self._dtype)
        self._rest()
        return made
