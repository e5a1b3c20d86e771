"""Whether the model that was built is the one that its file describes: the graph hash, computed from either."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import structlog
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.graph_hash import Build, GraphHash, architecture_digest, topology_digest
from services.common.checkpoint.header import Header
from services.common.errors import PreconditionFailed
from services.common.metrics import version
from services.engine.host import DEVICE_CLASS
from services.engine.model.llama_weights import LlamaWeights

log = structlog.get_logger(component="checkpoint")


def build_of(kernels: str, dtype: torch.dtype, kv: DType) -> Build:
    """What this build brings: its kernels, what it computes and stores keys and values in, its device and versions."""
    torch_minor = ".".join(torch.__version__.split(".")[:2])
    return Build(
        kernels={"name": kernels, "dtype": str(dtype).removeprefix("torch."), "kv_dtype": kv.value},
        device={"class": DEVICE_CLASS, "engine": version(), "torch": torch_minor},
    )


def check_graph(header: Header, constants: Architecture, weights: LlamaWeights, build: Build) -> None:
    """Compares what was built with what the file says, and logs it as `graph_hash_match`.

    Args:
        header: The file's, decoded: its tensors are those that its graph hash names.
        constants: What the decoder computes with; its sizes are taken from `weights`, not believed.
        weights: The decoder's.
        build: Of this engine.

    Raises:
        PreconditionFailed: They differ; names the parts, what was expected and what is.
    """
    built, expected = observed(constants, weights), header.graph
    actual = GraphHash(topology_digest(built), architecture_digest(built), header.graph.tensors)
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
    query_rows = layer.output.shape[1]
    return dataclasses.replace(
        constants,
        model_type="llama" if layer.qkv_bias is None else "qwen2",  # all that sets the two apart
        vocab_size=weights.embedding.shape[0],
        hidden_size=weights.embedding.shape[1],
        intermediate_size=layer.down.shape[1],
        num_hidden_layers=len(weights.layers),
        num_attention_heads=query_rows // head_dim,
        num_key_value_heads=(layer.qkv.shape[0] - query_rows) // (2 * head_dim),
        tie_word_embeddings=weights.head is weights.embedding,
    )


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
