"""Packed weights in an engine: views of the mapping, the same model, and nothing but what was asked for."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import structlog
import torch

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.graph_hash import Built
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.pack import pack, pack_gated
from services.common.errors import Cancelled, CorruptData, PreconditionFailed
from services.common.ids import ArtifactId
from services.engine.arena import Arena
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels
from services.engine.loaded_model import ModelLoading, PreparedArtifact
from services.engine.mapping import map_file
from services.engine.memory_need import MemoryNeed
from services.engine.model.graph_check import build_of, check_graph
from services.engine.model.weights import bind
from services.engine.nearby_weights import NearbyWeights
from tests.packed_weights import write_packed
from tests.unit.engine.decoding import Answer, Decoding, prepared
from tests.unit.engine.test_engine_memory_need import loader
from tests.unit.engine.unpacking_kernels import UnpackingKernels

NAMES = ["grouped", "odd_sizes", "biased"]


def packed(artifacts: dict[str, Path], name: str, directory: Path) -> PreparedArtifact:
    """What a loader would hand over that was asked for PACKED32."""
    path = directory / f"{name}.packed"
    header = write_packed(artifacts[name], path)
    plain = prepared(artifacts[name])
    return dataclasses.replace(plain, weights=path, identity=header.identity, layout=PACKED32)


def loading(kernels: Kernels) -> ModelLoading:
    return ModelLoading(arena=Arena(8 << 20), kernels=kernels, dtype="auto", max_model_len=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_packed_matrix_is_a_view_of_the_mapping(
    artifacts: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """With the values of the artifact's own tensors, in panels; the embedding row after row.

    Fault injection: turns red when up's panels are bound before gate's.
    """
    made = packed(artifacts, name, tmp_path)
    mapped, plain_map = map_file(made.weights), map_file(artifacts[name] / "model.halogen")
    header, plain_header = (Header.decode(each.numpy().tobytes()) for each in (mapped, plain_map))
    weights = bind(mapped, header, header.architecture, "auto")
    plain = bind(plain_map, plain_header, header.architecture, "auto")
    wide = header.architecture.intermediate_size
    for layer, own in zip(weights.layers, plain.layers, strict=True):
        gate, up = own.gate_up[:wide], own.gate_up[wide:]
        same(pack(elements(own.qkv)), layer.qkv)
        same(pack(elements(own.output)), layer.output)
        same(pack_gated(elements(gate), elements(up)), layer.gate_up)
        same(pack(elements(own.down)), layer.down)
        assert torch.equal(own.attention_norm, layer.attention_norm)
        if own.qkv_bias is None:
            assert layer.qkv_bias is None
        else:
            assert layer.qkv_bias is not None
            assert torch.equal(own.qkv_bias, layer.qkv_bias)
        for view in (layer.qkv, layer.down):
            assert 0 == (view.data_ptr() - mapped.data_ptr()) % 4096
            assert 0 < view.data_ptr() - mapped.data_ptr() < mapped.numel()
    same(pack(elements(plain.head)), weights.head)
    assert torch.equal(plain.embedding, weights.embedding)
    assert (PACKED32, None) == (weights.layout, plain.layout)


def elements(tensor: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return tensor.contiguous().view(torch.uint16).numpy()


def same(expected: np.ndarray[tuple[int, ...], np.dtype[np.uint16]], found: torch.Tensor) -> None:
    np.testing.assert_array_equal(expected, elements(found))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_computed_from_packed_weights_is_the_model(
    artifacts: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Kernels that unpack them again give the bits of those that read them as they are stored."""
    prompts = [[1, 2, 3, 4, 5], [7]]
    plain = Decoding(artifacts[name], PortableKernels(), "auto").together(prompts, 4)
    decoding = Decoding(artifacts[name], UnpackingKernels(), "auto", made=packed(artifacts, name, tmp_path))
    answers: list[Answer] = decoding.together(prompts, 4)
    assert plain == answers


def test_the_model_that_was_built_is_compared_with_the_artifact_s(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """The root is the artifact's own; the layout is part of the build, and so of what names pages.

    Fault injection: turns red when check_graph compares with the graph of the derived file.
    """
    made = packed(artifacts, "grouped", tmp_path)
    with structlog.testing.capture_logs() as logs:
        model = loading(UnpackingKernels()).load(made)
    said = next(entry for entry in logs if entry["event"] == "graph_hash_match")
    manifest = manifest_of(artifacts["grouped"])
    assert (True, manifest.requires.graph.root) == (said["ok"], said["expected"])
    assert "packed32-v1" == next(e for e in logs if e["event"] == "weights_bound")["layout"]
    unpacked = loading(UnpackingKernels()).load(prepared(artifacts["grouped"]))
    assert model.built
    assert unpacked.built
    assert model.built.graph == unpacked.built.graph
    assert ("packed32-v1", "") == (model.built.layout, unpacked.built.layout)
    assert model.origin != unpacked.origin


def manifest_of(artifact: Path) -> Manifest:
    return Manifest.decode((artifact / "manifest.json").read_bytes())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-05, not 1e-06"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings False, not True"),
        ({"intermediate_size": 95}, "intermediate_size 96, not 95"),
    ],
)
def test_a_config_other_than_the_converted_one_is_a_graph_mismatch(
    change: dict[str, object], named: str, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """Also where panels hide it: 95 rows fill as many as 96."""
    made = packed(artifacts, "grouped", tmp_path)
    config = json.dumps(json.loads(made.config) | change).encode()
    with pytest.raises(PreconditionFailed, match=named):
        loading(UnpackingKernels()).load(dataclasses.replace(made, config=config))


def test_a_decoder_built_of_other_tensors_is_a_graph_mismatch(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """Panels that lack are told by the sizes that they leave.

    Fault injection: turns red when observed takes packed sizes from the constants alone.
    """
    made = packed(artifacts, "grouped", tmp_path)
    mapped = map_file(made.weights)
    header = Header.decode(mapped.numpy().tobytes())
    weights = bind(mapped, header, header.architecture, "auto")
    build = build_of("unpacking", torch.bfloat16, DType.BF16, PACKED32)
    check_graph(header, header.architecture, weights, build)
    layer = dataclasses.replace(weights.layers[0], down=weights.layers[0].down[:, :16])
    short = dataclasses.replace(weights, layers=(layer, *weights.layers[1:]))
    with pytest.raises(PreconditionFailed, match="intermediate_size 96, not 32"):
        check_graph(header, header.architecture, short, build)


def test_tensors_of_another_model_are_refused_by_name(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """What config.json describes must be there, packed, and nothing else."""
    made = packed(artifacts, "grouped", tmp_path)
    config = json.dumps(json.loads(made.config) | {"hidden_size": 192, "head_dim": 16}).encode()
    with pytest.raises(CorruptData, match=r"packed weights: tensor .* config\.json says"):
        loading(UnpackingKernels()).load(dataclasses.replace(made, config=config))


def test_only_the_layout_that_was_said_and_asked_for_is_taken(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """Packed weights read row after row would be another model.

    Fault injection: turns red without ModelLoading._check_layout.
    """
    made, plain = packed(artifacts, "grouped", tmp_path), prepared(artifacts["grouped"])
    wrong: list[tuple[Kernels, PreparedArtifact]] = [
        (UnpackingKernels(), dataclasses.replace(made, layout=None)),
        (UnpackingKernels(), dataclasses.replace(plain, layout=PACKED32)),
        (UnpackingKernels(), dataclasses.replace(made, layout=KernelLayout("packed32-v1", "arm"))),
        (PortableKernels(), made),
    ]
    for kernels, given in wrong:
        with pytest.raises(CorruptData) as refusal:
            loading(kernels).load(given)
        assert "LAYOUT_MISMATCH" == refusal.value.reason


def test_binding_is_called_off_between_two_tensors(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """Nothing is built."""
    verified = loading(UnpackingKernels()).verify(packed(artifacts, "grouped", tmp_path))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        verified.build(stop)


def test_an_engine_counts_the_packed_file(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """Its length is known from the manifest; where kernels want no layout, or there is none, it is the artifact's own.

    Fault injection: turns red when MemoryNeed.foreseen leaves the layout out.
    """
    size_bytes = packed(artifacts, "grouped", tmp_path).weights.stat().st_size
    manifest, wide = manifest_of(artifacts["grouped"]), manifest_of(artifacts["wide_heads"])
    asking, plain = loading(UnpackingKernels()), loading(PortableKernels())
    assert (PACKED32, None) == (asking.layout_of(manifest), plain.layout_of(manifest))
    assert asking.layout_of(wide) is None, "it is stored in float32"
    assert dataclasses.replace(asking, dtype="float32").layout_of(manifest) is None
    for layout, expected in ((PACKED32, size_bytes), (None, manifest.weights.size_bytes)):
        need = MemoryNeed.foreseen(manifest, "auto", 7, is_nearby=False, layout=layout)
        assert MemoryNeed(7, 0, expected) == need


def test_weights_in_another_layout_are_not_nearby() -> None:
    """To prepare them takes memory, whatever else lies there of the same artifact.

    Fault injection: turns red when NearbyWeights looks at artifact ids alone.
    """
    artifact_id, nearby = ArtifactId("a" * 64), NearbyWeights("here")
    record = loader("here", artifact_id)
    nearby.hear([record.model_copy(update={"weights": (f"{artifact_id}.packed32-v1.x86",)})])
    assert (True, False) == (nearby.has(artifact_id, PACKED32), nearby.has(artifact_id))
    nearby.hear([record.model_copy(update={"weights": (artifact_id,)})])
    assert (False, True) == (nearby.has(artifact_id, PACKED32), nearby.has(artifact_id))
    nearby.hear([record])
    assert (False, True) == (nearby.has(artifact_id, PACKED32), nearby.has(artifact_id))


def test_a_layout_makes_another_build(artifacts: dict[str, Path]) -> None:
    """Its bits may be others, so nothing that was computed with one is taken for the other's."""
    graph = manifest_of(artifacts["grouped"]).requires.graph
    roots = {
        Built(graph, build_of("avx512_bf16", torch.bfloat16, DType.BF16, layout)).root
        for layout in (None, PACKED32)
    }
    assert 2 == len(roots)
