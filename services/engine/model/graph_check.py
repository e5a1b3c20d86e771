"""Whether the model that was built is the one that its file describes: the graph hash, computed from either."""

from __future__ import annotations

import dataclasses
from typing import Final, NoReturn

import structlog
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.graph_hash import Build, GraphHash, architecture_digest, topology_digest
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import KernelLayout, packed_shape
from services.common.errors import PreconditionFailed
from services.common.metrics import version
from services.engine.host import DEVICE_CLASS
from services.engine.model.llama_weights import LlamaWeights

_PLAIN: Final = 2  # dimensions of a matrix that lies row after row

log = structlog.get_logger(component="checkpoint")


def build_of(kernels: str, dtype: torch.dtype, kv: DType, layout: KernelLayout | None = None) -> Build:
    """What this build brings: its kernels, what it computes and stores keys and values in, its device and versions.

    And how its weights lie, if not as they are stored.
    """
    torch_minor = ".".join(torch.__version__.split(".")[:2])
    packed = {"layout": layout.abi} if layout else {}
    return Build(
        kernels={
            "name": kernels,
            "dtype": str(dtype).removeprefix("torch."),
            "kv_dtype": kv.value,
            **packed,
        },
        device={"class": DEVICE_CLASS, "engine": version(), "torch": torch_minor},
    )


def check_graph(header: Header, constants: Architecture, weights: LlamaWeights, build: Build) -> None:
    """Compares what was built with what the file says, and logs it as `graph_hash_match`.

    Args:
        header: The file's, decoded: its tensors are those that its graph hash names, or were made of them.
        constants: What the decoder computes with; its sizes are taken from `weights`, not believed.
        weights: The decoder's.
        build: Of this engine.

    Raises:
        PreconditionFailed: They differ; names the parts, what was expected and what is.
    """
    built, expected = observed(constants, weights), header.model_graph
    actual = GraphHash(topology_digest(built), architecture_digest(built), expected.tensors)
    ok = actual == expected
    log.info(
        "graph_hash_match",
        expected=expected.root,
        actual=actual.root,
        ok=ok,
        build=build.root(actual),
    )
    if not ok:
        _refuse(expected, actual, _differing_fields(header.architecture, built))


def observed(constants: Architecture, weights: LlamaWeights) -> Architecture:
    """The architecture that the tensors in a decoder's hands have."""
    layer, head_dim = weights.layers[0], constants.head_dim
    attended, wide = constants.num_attention_heads * head_dim, constants.intermediate_size
    query_rows = _columns(layer.output, attended)
    kv_rows = constants.num_key_value_heads * head_dim
    qkv_rows = _rows(layer.qkv, query_rows + 2 * kv_rows)
    return dataclasses.replace(
        constants,
        model_type="llama" if layer.qkv_bias is None else "qwen2",  # all that sets the two apart
        vocab_size=weights.embedding.shape[0],
        hidden_size=weights.embedding.shape[1],
        intermediate_size=_columns(layer.down, wide),
        num_hidden_layers=len(weights.layers),
        num_attention_heads=query_rows // head_dim,
        num_key_value_heads=(qkv_rows - query_rows) // (2 * head_dim),
        tie_word_embeddings=_is_tied(constants, weights),
    )


def _is_tied(constants: Architecture, weights: LlamaWeights) -> bool:
    """A packed head is a copy: there it is as it was said."""
    return weights.head is weights.embedding if weights.layout is None else constants.tie_word_embeddings


def _rows(matrix: torch.Tensor, said: int) -> int:
    """How many rows it has; in panels, what they were said to be if they would fill just these panels."""
    if matrix.dim() == _PLAIN:
        return matrix.shape[0]
    panels, _, rows, _ = matrix.shape
    return said if packed_shape(said, 1)[0] == panels else panels * rows


def _columns(matrix: torch.Tensor, said: int) -> int:
    if matrix.dim() == _PLAIN:
        return matrix.shape[1]
    _, pairs, _, pair = matrix.shape
    return said if packed_shape(1, said)[1] == pairs else pairs * pair


def _differing_fields(expected: Architecture, actual: Architecture) -> str:
    there = actual.to_fields()
    told = [
        f"{name} {v!r}, not {there[name]!r}" for name, v in expected.to_fields().items() if v != there[name]
    ]
    return f": {'; '.join(told)}" if told else ""


def _refuse(expected: GraphHash, actual: GraphHash, fields: str) -> NoReturn:
    parts = expected.differing(actual)
    told = ", ".join(
        f"{part} (expected {getattr(expected, part)[:12]}, actual {getattr(actual, part)[:12]})"
        for part in parts
    )
    raise PreconditionFailed(
        f"GRAPH_MISMATCH: the model built here is not the one stored: graph part {told}{fields}; "
        "convert the original checkpoint with this build, and compare with: halogen inspect ARTIFACT",
        reason="GRAPH_MISMATCH",
        metadata={
            "part": ",".join(parts),
            "expected": expected.root,
            "actual": actual.root,
        },
    )
