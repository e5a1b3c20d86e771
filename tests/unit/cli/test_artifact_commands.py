"""`halogen inspect` and `halogen diff`: everything an artifact says of itself, and in what two are not the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.common.checkpoint.conversion_options import ConversionOptions
from services.common.checkpoint.dtype import DType
from services.common.errors import CorruptData
from tests.tiny_checkpoints import MULTI_BLOCK, TinyShape, make_tiny_artifact


def halogen(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def differences(one: Path, other: Path) -> set[tuple[str, str]]:
    result = halogen("diff", one, other, "--json")
    found = json.loads(result.output)
    assert (1 if found else 0) == result.exit_code
    return {(each["part"], each["factor"]) for each in found}


def test_inspect_tells_all_for_scripts(tmp_path: Path) -> None:
    """The artifact's id and files, the header's fields, the graph hash, and every tensor."""
    directory, manifest = make_tiny_artifact(tmp_path)
    told: dict[str, Any] = json.loads(halogen("inspect", directory, "--json").output)
    assert manifest.id == told["artifact"]["id"]
    assert [file.path for file in manifest.files] == [file["path"] for file in told["files"]]
    assert manifest.weights.sha256 == told["weights"]["identity"]
    assert ("2.1", 1, 1) == tuple(
        told["weights"][k] for k in ("format", "block_rows", "tensor_parallel_size")
    )
    assert manifest.architecture.to_fields() == told["architecture"]
    assert {"topology", "architecture", "tensors", "root", "declared_alike_here"} == set(told["graph"])
    assert 21 == len(told["tensors"])
    alone = json.loads(halogen("inspect", directory / "model.halogen", "--json").output)
    assert {key: told[key] for key in alone} == alone
    assert {"artifact", "files", "requires", "signatures"} == told.keys() - alone.keys()
    assert {
        "device_classes": [],
        "input_schema": "token_ids.v1",
        "precisions": ["bf16"],
        "runtime": ">=0.1",
    } == told["requires"]


def test_inspect_tells_people_the_same(tmp_path: Path) -> None:
    """In tables."""
    directory, manifest = make_tiny_artifact(tmp_path)
    told = halogen("inspect", directory).output
    for text in (manifest.id[:12], "rope_theta", "topology", "lm_head.weight", "tokenizer.json"):
        assert text in told


def test_inspect_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    """The refusal is the one that a loader would give."""
    (tmp_path / "model.halogen").write_bytes(bytes(8192))
    with pytest.raises(CorruptData, match=r"model\.halogen, preamble: not a weight file"):
        raise halogen("inspect", tmp_path / "model.halogen").exception or AssertionError
    assert "no such file" in str(halogen("inspect", tmp_path / "nothing").exception)


def test_an_artifact_does_not_differ_from_itself(tmp_path: Path) -> None:
    """Status 0, and a line that says so."""
    directory, _ = make_tiny_artifact(tmp_path)
    result = halogen("diff", directory, directory)
    assert (0, "no difference\n") == (result.exit_code, result.output)


def test_diff_names_part_and_factor(tmp_path: Path) -> None:
    """A constant is in topology and architecture and in the configuration's file; both values are shown."""
    one, _ = make_tiny_artifact(tmp_path / "one")
    other, _ = make_tiny_artifact(tmp_path / "other", TinyShape(rope_theta=500.0))
    assert {
        ("topology", "causal_attention rope_theta"),
        ("architecture", "rope_theta"),
        ("files", "config.json"),
    } == differences(one, other)
    told = halogen("diff", one, other).output
    assert "architecture: rope_theta: 10000.0 -> 500.0\n" in told


def test_diff_names_what_is_required_of_one_and_not_of_the_other(tmp_path: Path) -> None:
    """The weights may well be the same."""
    one, _ = make_tiny_artifact(tmp_path / "one")
    narrow = ConversionOptions(runtime="<2", device_classes=("sm_90",))
    other, _ = make_tiny_artifact(tmp_path / "other", options=narrow)
    assert {("requires", "runtime"), ("requires", "device_classes")} == differences(one, other)


def test_diff_tells_layers_dtypes_and_tensors_apart(tmp_path: Path) -> None:
    """A lost layer is so many nodes and nine tensors; another dtype is one line for each kind of operation."""
    one, _ = make_tiny_artifact(tmp_path / "one")
    shorter, _ = make_tiny_artifact(tmp_path / "shorter", TinyShape(num_hidden_layers=1))
    found = differences(one, shorter)
    assert {("topology", "nodes"), ("architecture", "num_hidden_layers")} <= found
    assert 9 == sum(part == "tensors" for part, _ in found)
    wider, _ = make_tiny_artifact(tmp_path / "wider", dataclasses.replace(TinyShape(), dtype=DType.FP32))
    assert {("topology", "rms_norm dtype"), ("architecture", "dtype")} <= differences(one, wider)


def test_diff_names_the_tensors_whose_numbers_differ(tmp_path: Path) -> None:
    """The same model, trained on: the blocks whose digests differ, and what lies in them."""
    one, _ = make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=1)
    other, _ = make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=2)
    found = differences(one, other)
    assert {"numbers"} == {part for part, _ in found}
    assert any(factor.startswith("block 0, model.embed_tokens.weight to ") for _, factor in found)
