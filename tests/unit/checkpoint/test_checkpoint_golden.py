"""Golden files, read with a reader made from docs/checkpoint-format.md alone: nothing of ours is imported for it."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.graph_hash import topology_digest
from services.common.checkpoint.header import Header
from tests.tiny_checkpoints import TinyShape
from tests.unit.checkpoint.golden import FILES, FOLDER, VALUES, write


class DocumentedReader:
    """Checks what the page says a reader checks of a sound file, and gives tensors as float64."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        magic, version, revision, length, digest, zero = struct.unpack("<8sIIQ32s8s", content[:64])
        assert (b"\x89HALOGEN", 2, 1, bytes(8)) == (magic, version, revision, zero)
        assert length <= 64 << 20
        text = content[64 : 64 + length]
        assert hashlib.sha256(text).digest() == digest
        self.header: dict[str, Any] = json.loads(text)
        assert canonical(self.header) == text
        begin = self.header["data_offset"]
        assert -(-(64 + length) // 4096) * 4096 == begin
        assert not any(content[64 + length : begin])
        assert begin + self.header["data_bytes"] == len(content)
        size = self.header["block_bytes"]
        blocks = [content[at : at + size] for at in range(begin, len(content), size)]
        assert self.header["digests"] == [blake3(block).hexdigest() for block in blocks]
        self.tensors = {tensor["name"]: tensor for tensor in self.header["tensors"]}

    def values(self, name: str) -> Any:
        tensor = self.tensors[name]
        stored = self.stored(tensor).reshape(tensor["shape"])
        if tensor["quantisation"] is None:
            return stored
        scaled = stored * self.spread(tensor, "scales")
        return scaled + self.spread(tensor, "biases") if tensor["quantisation"]["biases"] else scaled

    def spread(self, tensor: Any, which: str) -> Any:
        """Every element's own scale."""
        scales = self.values(tensor["quantisation"][which])
        for axis, (size, block) in enumerate(
            zip(tensor["shape"], tensor["quantisation"]["block"], strict=True)
        ):
            scales = np.take(scales, np.arange(size) // block, axis)
        return scales

    def stored(self, tensor: Any) -> Any:
        raw = self.content[tensor["offset"] : tensor["offset"] + tensor["nbytes"]]
        match tensor["dtype"]:
            case "fp32" | "fp16":
                return np.frombuffer(raw, {"fp32": "<f4", "fp16": "<f2"}[tensor["dtype"]]).astype(np.float64)
            case "bf16":
                return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
            case "fp8_e5m2":
                return (np.frombuffer(raw, "u1").astype("<u2") << 8).view("<f2").astype(np.float64)
            case "fp8_e4m3":
                return np.array([e4m3(byte) for byte in raw])
            case "int8":
                return np.frombuffer(raw, "i1").astype(np.float64)
            case "int4":
                halves = itertools.chain.from_iterable((byte & 15, byte >> 4) for byte in raw)
                return np.array([half - 16 if half > 7 else half for half in halves], np.float64)
        raise AssertionError(tensor["dtype"])


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9
    return -size if byte & 128 else size


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(part: str, factors: Any) -> str:
    return hashlib.sha256(canonical([part, factors])).hexdigest()


@pytest.mark.parametrize("name", FILES)
def test_the_page_is_enough_to_read_every_tensor(name: str) -> None:
    """Values of every dtype, with scales and biases, come out as they were written down by hand."""
    reader = DocumentedReader((FOLDER / f"{name}.halogen").read_bytes())
    for tensor, values in VALUES[name].items():
        assert values == reader.values(tensor).tolist()


@pytest.mark.parametrize("name", FILES)
def test_the_page_is_enough_to_check_the_graphs_parts(name: str) -> None:
    """Root, architecture and tensors follow from the header alone."""
    header = DocumentedReader((FOLDER / f"{name}.halogen").read_bytes()).header
    graph = header["graph"]
    places = [
        (place, tensor)
        for _, group in itertools.groupby(header["tensors"], lambda t: t["group"] or t["name"])
        for place, tensor in enumerate(group)
    ]
    kept = ("name", "dtype", "shape", "group", "shard", "quantisation")
    tensors = [{**{key: tensor[key] for key in kept}, "place_in_group": place} for place, tensor in places]
    storage = {key: header[key] for key in ("block_rows", "tensor_parallel_size")}
    factors = {**storage, "tensors": sorted(tensors, key=lambda tensor: str(tensor["name"]))}
    assert digest("architecture", header["architecture"]) == graph["architecture"]
    assert digest("tensors", factors) == graph["tensors"]
    assert graph["root"] == digest("artifact", {key: value for key, value in graph.items() if key != "root"})


def node(op: str, inputs: Iterable[str], dtype: str, *shape: Any, **attributes: Any) -> str:
    return hashlib.sha256(canonical([op, attributes, list(inputs), dtype, shape])).hexdigest()


class DocumentedGraph:
    """The nodes of the page's table, in its order."""

    def __init__(self, architecture: dict[str, Any]) -> None:
        self.arch = architecture
        self.dtype, self.hidden = architecture["dtype"], architecture["hidden_size"]

    def digest(self) -> str:
        arch, hidden = self.arch, self.hidden
        embedding = self.weight("model.embed_tokens.weight", arch["vocab_size"], hidden)
        residual = node("embed", (node("token_ids", (), "int32", "s0"), embedding), "fp32", "s0", hidden)
        for index in range(arch["num_hidden_layers"]):
            residual = self.layer(f"model.layers.{index}.", residual)
        wanted = node("sample_rows", (residual,), "fp32", "s1", hidden)
        head = embedding
        if not arch["tie_word_embeddings"]:
            head = self.weight("lm_head.weight", arch["vocab_size"], hidden)
        normed = self.norm("model.norm.weight", wanted, "s1")
        return node("logits", (normed, head), "fp32", "s1", arch["vocab_size"])

    def layer(self, layer: str, residual: str) -> str:
        arch, hidden, wide = self.arch, self.hidden, self.arch["intermediate_size"]
        names = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
        constants = {name: arch[names.get(name, name)] for name in (*names, "head_dim", "rope_theta")}
        heads, kv_heads = (constants[name] * arch["head_dim"] for name in names)
        rows, attention = {"q": heads, "k": kv_heads, "v": kv_heads}, f"{layer}self_attn."
        qkv = self.linear(
            self.norm(f"{layer}input_layernorm.weight", residual, "s0"),
            {f"{attention}{part}_proj.weight": count for part, count in rows.items()},
        )
        if arch["model_type"] == "qwen2":
            biases = [self.weight(f"{attention}{part}_proj.bias", count) for part, count in rows.items()]
            qkv = node("add_bias", (qkv, *biases), "fp32", "s0", heads + 2 * kv_heads)
        mixed = node("causal_attention", (qkv,), self.dtype, "s0", heads, **constants)
        output = self.weight(f"{attention}o_proj.weight", hidden, heads)
        residual = node("add_linear", (residual, mixed, output), "fp32", "s0", hidden)
        gate_up = self.linear(
            self.norm(f"{layer}post_attention_layernorm.weight", residual, "s0"),
            {f"{layer}mlp.{part}_proj.weight": wide for part in ("gate", "up")},
        )
        gated = node("gated_silu", (gate_up,), self.dtype, "s0", wide)
        down = self.weight(f"{layer}mlp.down_proj.weight", hidden, wide)
        return node("add_linear", (residual, gated, down), "fp32", "s0", hidden)

    def linear(self, normed: str, rows: dict[str, int]) -> str:
        weights = [self.weight(name, count, self.hidden) for name, count in rows.items()]
        return node("linear", (normed, *weights), "fp32", "s0", sum(rows.values()))

    def norm(self, name: str, residual: str, rows: str) -> str:
        inputs = residual, self.weight(name, self.hidden)
        return node("rms_norm", inputs, self.dtype, rows, self.hidden, eps=self.arch["rms_norm_eps"])

    def weight(self, name: str, *shape: int) -> str:
        return node("weight", (), self.dtype, *shape, tensor=name)


@pytest.mark.parametrize("shape", [TinyShape(), TinyShape(model_type="qwen2", tie_word_embeddings=True)])
def test_the_page_is_enough_to_compute_the_topology(shape: TinyShape) -> None:
    """As whoever writes such a file must; for both families."""
    architecture = Architecture.from_config(shape.config(), shape.dtype)
    fields = json.loads(canonical(architecture.to_fields()))
    assert topology_digest(architecture) == digest("topology", DocumentedGraph(fields).digest())


@pytest.mark.parametrize("name", FILES)
def test_the_writer_makes_the_golden_bytes(name: str, tmp_path: Path) -> None:
    """A change of the format shows here: then its revision grows, and the files are made anew."""
    write(name, tmp_path / name)
    made = (tmp_path / name).read_bytes()
    assert (FOLDER / f"{name}.halogen").read_bytes() == made
    assert list(DocumentedReader(made).tensors) == list(Header.decode(made).tensors)
