"""Weights in place: mapped read-only, shared, never copied, and refused by name when they do not fit."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import torch

from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.writer import write_weights
from services.common.errors import CorruptData, Overloaded, PreconditionFailed, Unavailable, Unsupported
from services.common.memory_guard import Bound, MemoryGuard
from services.engine.arena import Arena
from services.engine.kernels.portable import PortableKernels
from services.engine.loaded_model import ModelLoading
from services.engine.mapping import map_file, populate
from services.engine.model.graph_check import build_of, check_graph
from services.engine.model.llama import Llama
from services.engine.model.weights import DTypeChoice
from services.loader.conversion import convert
from tests.unit.engine.decoding import Decoding, prepared

ARENA_BYTES = 1 << 20


def mapping_of(path: Path) -> dict[str, int]:
    """The kernel's counts of a mapping of this process, in KiB; empty if there is none."""
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    for block in blocks:
        if block.splitlines()[0].endswith(str(path)):
            return {name: int(kib) for name, kib in re.findall(r"^(\w+): +(\d+) kB", block, re.MULTILINE)}
    return {}


def loading(dtype: DTypeChoice = "auto") -> ModelLoading:
    return ModelLoading(arena=Arena(ARENA_BYTES), kernels=PortableKernels(), dtype=dtype, max_model_len=0)


def test_weights_are_shared_with_the_file_and_not_private(artifacts: dict[str, Path]) -> None:
    """After a whole answer, not one page of the mapping is this process's own copy."""
    path = artifacts["stories-v1"] / "model.halogen"
    decoding = Decoding(artifacts["stories-v1"], PortableKernels(), "auto")
    decoding.together([[1, 2, 3]], 4)
    counts = mapping_of(path)
    assert counts["Rss"] >= path.stat().st_size // 1024
    assert (0, 0) == (counts["Private_Dirty"], counts["Anonymous"])


def test_every_matrix_is_a_view_of_the_mapping(artifacts: dict[str, Path]) -> None:
    """q, k, v are one matrix, gate and up another, each at the place that the header gives."""
    path = artifacts["grouped"] / "model.halogen"
    header = Header.decode(path.read_bytes())
    decoder = Decoding(artifacts["grouped"], PortableKernels(), "auto").model._decoder
    assert isinstance(decoder, Llama)
    weights = decoder.weights
    start = weights.embedding.data_ptr() - header.tensors["model.embed_tokens.weight"].offset
    for i, layer in enumerate(weights.layers):
        at = {name: header.tensors[f"model.layers.{i}.{name}.weight"].offset for name in NAMES}
        assert at["self_attn.q_proj"] == layer.qkv.data_ptr() - start
        assert ((6 + 2 + 2) * 16, 96) == layer.qkv.shape
        assert at["mlp.gate_proj"] == layer.gate_up.data_ptr() - start
        assert at["mlp.down_proj"] == layer.down.data_ptr() - start
        assert at["input_layernorm"] == layer.attention_norm.data_ptr() - start


NAMES = ("self_attn.q_proj", "mlp.gate_proj", "mlp.down_proj", "input_layernorm")


def test_what_is_mapped_lazily_is_left_on_the_disk(artifacts: dict[str, Path]) -> None:
    """As much, from the file's end, as its loader said.

    Fault injection: turns red when ModelLoading.verify makes the whole mapping resident.
    """
    path = artifacts["stories-v1"] / "model.halogen"
    resident = []
    for lazy_bytes in (0, path.stat().st_size):
        told = dataclasses.replace(prepared(artifacts["stories-v1"]), lazy_bytes=lazy_bytes)
        model = loading().load(told)
        resident.append(mapping_of(path)["Rss"])
        del model
        gc.collect()
    assert resident[0] >= path.stat().st_size // 1024 > 2 * resident[1]


@pytest.mark.parametrize("choice", ["auto", "float32"])
def test_copies_of_weights_stay_below_the_memory_guard(
    artifacts: dict[str, Path], choice: DTypeChoice
) -> None:
    """Used in place, weights take no memory but the loader's; copies are refused before they are made. What the arena will
    take counts, too.

    Fault injection: turns red when VerifiedWeights.build does not ask the guard.
    """
    artifact = artifacts["stories-v1"]
    header = Header.decode((artifact / "model.halogen").read_bytes())
    assert {DType.BF16} == {entry.dtype for entry in header.layout.entries}
    need_bytes = 2 * sum(entry.nbytes for entry in header.layout.entries) + ARENA_BYTES
    short = MemoryGuard(0.5, lambda: [Bound("this host", 2 * need_bytes, 1)])
    guarded = dataclasses.replace(loading(choice), guard=short)
    if choice == "auto":
        guarded.load(prepared(artifact))
        return
    with pytest.raises(Overloaded, match=rf"needs {need_bytes} \+ holds 1 > 0\.5 x limit"):
        guarded.load(prepared(artifact))


def test_the_file_is_unmapped_when_its_last_tensor_is_gone(tmp_path: Path) -> None:
    """No cycle keeps a retired model's weights."""
    path = tmp_path / "weights"
    path.write_bytes(b"halogen!" * 1024)
    mapped = map_file(path)
    populate(mapped, threading.Event())
    part = mapped[8:16]
    del mapped
    assert {} != mapping_of(path)
    assert b"halogen!" == part.numpy().tobytes()
    del part
    gc.collect()
    assert {} == mapping_of(path)


def test_a_write_to_the_weights_is_a_segmentation_fault(tmp_path: Path) -> None:
    """Nothing in the engine can change what others map."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(4096))
    script = f"""
import pathlib
from services.engine.mapping import map_file
map_file(pathlib.Path({str(path)!r}))[0] = 1
"""
    assert -11 == subprocess.run([sys.executable, "-c", script], check=False).returncode
    assert bytes(4096) == path.read_bytes()


def test_a_file_that_is_gone_is_worth_asking_the_loader_again(tmp_path: Path) -> None:
    """Evicted between prepare and map: not a fault of the artifact."""
    with pytest.raises(Unavailable, match="cannot be opened"):
        map_file(tmp_path / "gone")


def test_a_file_other_than_the_verified_one_is_refused(artifacts: dict[str, Path]) -> None:
    """The header's identity must be the loader's."""
    other = dataclasses.replace(prepared(artifacts["grouped"]), identity="0" * 64)
    with pytest.raises(CorruptData, match="not those that the loader verified"):
        loading().load(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, r"tensor model.layers.2\S+ is missing"),
        ({"num_hidden_layers": 1}, r"tensor model.layers.1\S+ belongs to no such model"),
        ({"vocab_size": 511}, r"tensor model.embed_tokens.weight has shape"),
        ({"tie_word_embeddings": True}, r"tensor lm_head.weight belongs to no such model"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(
    changes: dict[str, object], message: str, artifacts: dict[str, Path]
) -> None:
    """Missing, left over and mis-shaped tensors are each told apart."""
    good = prepared(artifacts["grouped"])
    config = json.dumps(json.loads(good.config) | changes).encode()
    with pytest.raises(CorruptData, match=message):
        loading().load(dataclasses.replace(good, config=config))


OTHER_TENSORS: dict[str, tuple[Callable[[TensorSpec], list[TensorSpec]], str]] = {
    "dropped": (lambda spec: [], "tensor model.norm.weight is missing"),
    "renamed": (
        lambda spec: [dataclasses.replace(spec, name="norm.weight")],
        "tensor model.norm.weight is missing",
    ),
    "added": (
        lambda spec: [spec, dataclasses.replace(spec, name="norm.weight")],
        "tensor norm.weight belongs to no such model",
    ),
    "mis-shaped": (
        lambda spec: [dataclasses.replace(spec, shape=(7,))],
        r"model.norm.weight has shape \(7,\)",
    ),
}


@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_r_a24_a_tensor_dropped_renamed_or_added_is_refused_by_name(
    case: str, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """R-A24: nothing is skipped silently, though all digests are right.

    Fault injection: let `bind` take what it finds, without `_check_tensors`.
    """
    change, message = OTHER_TENSORS[case]
    good = prepared(artifacts["grouped"])
    architecture = Header.decode(good.weights.read_bytes()).architecture
    norm = "model.norm.weight"
    specs = [
        s for spec in decoder_tensors(architecture) for s in (change(spec) if spec.name == norm else [spec])
    ]
    path = tmp_path / "model.halogen"
    header = write_weights(path, specs, architecture, lambda entry: [bytes(entry.nbytes)])
    with pytest.raises(CorruptData, match=message):
        loading().load(dataclasses.replace(good, weights=path, identity=header.identity))


def test_what_the_engine_does_not_compute_is_refused_by_name(artifacts: dict[str, Path]) -> None:
    """A scaled rotation would give other tokens, so it is no detail."""
    good = prepared(artifacts["grouped"])
    config = json.dumps(json.loads(good.config) | {"rope_scaling": {"rope_type": "llama3"}}).encode()
    with pytest.raises(Unsupported, match="rope_type of rope_scaling"):
        loading().load(dataclasses.replace(good, config=config))


def test_float32_weights_are_not_copied_down_to_bfloat16(artifacts: dict[str, Path]) -> None:
    """The one allowed copy is the one upwards."""
    with pytest.raises(Unsupported, match="--dtype bfloat16"):
        loading("bfloat16").load(prepared(artifacts["wide_heads"]))
    assert DType.FP32 == loading("auto").load(prepared(artifacts["wide_heads"]))._decoder.kv.dtype
    assert DType.FP32 == loading("float32").load(prepared(artifacts["grouped"]))._decoder.kv.dtype


def test_float16_weights_are_served_from_copies_that_are_exact(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """No kernel computes in float16, so it is copied, unasked, to what has all its values.

    Fault injection: turns red when `compute_dtype` leaves float16 as it is.
    """
    fp16 = ConversionOptions(quant_policy=QuantPolicy.FP16)
    convert(artifacts["wide_heads"], tmp_path / "fp16", options=fp16)
    exact, halved = (loading().load(prepared(path)) for path in (artifacts["wide_heads"], tmp_path / "fp16"))
    expected, actual = (model._decoder.weights.embedding for model in (exact, halved))
    assert (torch.float32, DType.FP32) == (actual.dtype, halved._decoder.kv.dtype)
    assert torch.equal(expected.half().float(), actual)


def test_the_model_that_was_built_is_compared_with_the_one_stored(artifacts: dict[str, Path]) -> None:
    """Both sets of kernels, and float32 from bf16, build what the file says; the log has both roots."""
    with structlog.testing.capture_logs() as logs:
        loading("float32").load(prepared(artifacts["grouped"]))
    said = next(entry for entry in logs if entry["event"] == "graph_hash_match")
    assert (True, 64) == (said["ok"], len(said["expected"]))
    assert said["expected"] == said["actual"] != said["build"]


@pytest.mark.parametrize(
    ("change", "parts", "named"),
    [
        ({"rms_norm_eps": 1e-6}, "topology,architecture", "rms_norm_eps 1e-05, not 1e-06"),
        ({"rope_theta": 500.0}, "topology,architecture", "rope_theta 10000.0, not 500.0"),
        ({"max_position_embeddings": 99}, "architecture", "max_position_embeddings 512, not 99"),
    ],
)
def test_a_config_other_than_the_converted_one_is_a_graph_mismatch(
    change: dict[str, object], parts: str, named: str, artifacts: dict[str, Path]
) -> None:
    """Constants leave no trace in the tensors' shapes; part, factor and both values are named.

    Fault injection: without `check_graph` in `VerifiedWeights.build` such a model answers, wrongly.
    """
    good = prepared(artifacts["grouped"])
    config = json.dumps(json.loads(good.config) | change).encode()
    with pytest.raises(PreconditionFailed, match=named) as refusal:
        loading().load(dataclasses.replace(good, config=config))
    assert ("GRAPH_MISMATCH", parts) == (refusal.value.reason, refusal.value.metadata["part"])
    assert re.search(r"architecture \(expected [0-9a-f]{12}, actual [0-9a-f]{12}\)", refusal.value.message)


def test_a_decoder_built_of_other_tensors_is_a_graph_mismatch(artifacts: dict[str, Path]) -> None:
    """What the decoder holds counts, not what its configuration says: here a layer is lost on the way."""
    built = Decoding(artifacts["grouped"], PortableKernels(), "auto").model._decoder
    header = Header.decode((artifacts["grouped"] / "model.halogen").read_bytes())
    build = build_of("portable", torch.bfloat16, DType.BF16)
    check_graph(header, built.architecture, built.weights, build)
    short = dataclasses.replace(built.weights, layers=built.weights.layers[:1])
    with pytest.raises(PreconditionFailed, match="num_hidden_layers 2, not 1"):
        check_graph(header, built.architecture, short, build)
    tied = dataclasses.replace(built.weights, head=built.weights.embedding)
    with pytest.raises(PreconditionFailed, match="tie_word_embeddings False, not True"):
        check_graph(header, built.architecture, tied, build)


def test_a_decoder_that_lost_its_biases_is_a_graph_mismatch(artifacts: dict[str, Path]) -> None:
    """They are all that sets a family apart, and without them it would answer, wrongly."""
    built = Decoding(artifacts["biased"], PortableKernels(), "auto").model._decoder
    header = Header.decode((artifacts["biased"] / "model.halogen").read_bytes())
    build = build_of("portable", torch.bfloat16, DType.BF16)
    check_graph(header, built.architecture, built.weights, build)
    bare = tuple(dataclasses.replace(layer, qkv_bias=None) for layer in built.weights.layers)
    with pytest.raises(PreconditionFailed, match="model_type 'qwen2', not 'llama'"):
        check_graph(header, built.architecture, dataclasses.replace(built.weights, layers=bare), build)


def test_r_g1_every_factor_of_a_build_is_hashed(artifacts: dict[str, Path]) -> None:
    """R-G1: whatever a build names, its kernels and its dtype first of all, gives another root when it changes.

    Fault injection: `build_of` leaves the dtype out.
    """
    graph = Header.decode((artifacts["grouped"] / "model.halogen").read_bytes()).graph
    build = build_of("portable", torch.bfloat16, DType.BF16)
    builds = [
        build,
        build_of("avx512_bf16", torch.bfloat16, DType.BF16),
        build_of("portable", torch.float32, DType.BF16),
        build_of("portable", torch.bfloat16, DType.INT8),
    ]
    builds += [
        build._replace(**{part: {**factors, name: "other"}})
        for part, factors in build._asdict().items()
        for name in factors
    ]
    assert len(builds) == len({each.root(graph) for each in builds})
