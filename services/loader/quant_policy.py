"""Which dtype each tensor is stored in, and what to say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from services.common.checkpoint.conversion_options import QuantPolicy
from services.common.checkpoint.decoder_tensors import EMBEDDING
from services.common.checkpoint.dtype import DType
from services.common.errors import Unsupported
from services.loader.elements import FLOATS
from services.loader.recast import is_exact, recast
from services.loader.source_tensor import SourceTensor


def apply_policy(
    tensors: Mapping[str, SourceTensor], policy: QuantPolicy
) -> tuple[Mapping[str, SourceTensor], tuple[str, ...]]:
    """The tensors as they are to be stored, and what a person should know of it, a line each.

    Raises:
        Unsupported: A quantised source is to be kept as it is.
    """
    quantised = [tensor for tensor in tensors.values() if tensor.encoding]
    dtype = policy.dtype
    if dtype is None:
        if quantised:
            raise Unsupported(
                f"the source is quantised, and no engine computes with its blocks: {_growth(tensors, DType.BF16)}; "
                f"give the DST that comes of: {QuantPolicy.BF16.command} (or fp16, fp32)",
                reason="QUANTISED_SOURCE",
            )
        return _with_exact_vectors(tensors)
    for tensor in tensors.values():
        if tensor.dtype not in FLOATS:
            raise Unsupported(
                f"tensor {tensor.name} is {tensor.dtype}, which this build does not dequantise; convert the "
                "original checkpoint instead",
                reason="DTYPE_UNSUPPORTED",
            )
    stored = {name: recast(tensor, dtype) for name, tensor in tensors.items()}
    notes = []
    if quantised:
        notes.append(f"dequantised: {_growth(tensors, dtype)}")
    if narrowed := [tensor for tensor in tensors.values() if _is_narrowed(tensor, dtype)]:
        notes.append(f"rounded to {dtype}: {len(narrowed)} tensors, from {_count(t.dtype for t in narrowed)}")
    return stored, tuple(notes)


def _with_exact_vectors(
    tensors: Mapping[str, SourceTensor],
) -> tuple[Mapping[str, SourceTensor], tuple[str, ...]]:
    """Norms and biases in the dtype of the matrices, where it has all their values.

    An engine computes with one dtype, and what writes GGUF files stores vectors as float32 whatever they were.
    """
    if EMBEDDING not in tensors or (dtype := tensors[EMBEDDING].dtype) not in FLOATS:
        return tensors, ()
    others = [tensor for tensor in tensors.values() if len(tensor.shape) == 1 and tensor.dtype is not dtype]
    exact = {
        each.name: recast(each, dtype) for each in others if each.dtype in FLOATS and is_exact(each, dtype)
    }
    if not exact:
        return tensors, ()
    kinds = _count(tensor.dtype for tensor in others if tensor.name in exact)
    return {**tensors, **exact}, (f"stored in {dtype}, which has all their values: {kinds} norms and biases",)


def _is_narrowed(tensor: SourceTensor, dtype: DType) -> bool:
    return not tensor.encoding and dtype not in (tensor.dtype, DType.FP32)


def _growth(tensors: Mapping[str, SourceTensor], dtype: DType) -> str:
    """What it takes now and what it would take in `dtype`."""
    before = sum(tensor.stored_bytes for tensor in tensors.values())
    after = sum(dtype.nbytes(tensor.shape) for tensor in tensors.values())
    kinds = _count(tensor.encoding for tensor in tensors.values() if tensor.encoding)
    return f"{kinds} of {before} bytes are {after} bytes in {dtype}"


def _count(kinds: Iterable[str]) -> str:
    """Every kind and how often: Q4_1 (210), Q8_0 (1)."""
    return ", ".join(f"{kind} ({count})" for kind, count in sorted(Counter(kinds).items()))
