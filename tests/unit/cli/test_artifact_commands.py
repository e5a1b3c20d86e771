"""`halogen inspect` and `halogen diff`: everything an artifact says of itself, and in what two are not the same."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.cli.console import CommandError
from services.cli.main import app
from services.common.checkpoint.conversion_options import ConversionOptions
from services.common.checkpoint.dtype import DType
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


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the weights": (
        lambda artifact: flip(artifact / "model.halogen"),
        "block 0 of 1 does not match",
    ),
    "weights cut short": (lambda artifact: os.truncate(artifact / "model.halogen", 8192), "has 8192 bytes"),
    "a bit of a small file": (
        lambda artifact: flip(artifact / "tokenizer.json"),
        "tokenizer.json does not match",
    ),
    "a file less": (lambda artifact: (artifact / "config.json").unlink(), "config.json is missing"),
    "a file more": (lambda artifact: (artifact / "more").touch(), "'more' lies in the artifact's directory"),
    "no manifest": (lambda artifact: (artifact / "manifest.json").unlink(), "no manifest.json there"),
    "a torn manifest": (lambda artifact: flip(artifact / "manifest.json"), "manifest.json: "),
    "torn signatures": (
        lambda artifact: (artifact / "manifest.sig").write_text("{"),
        "manifest.sig cannot be read",
    ),
}


# Turns red when: Inspected.open leaves out what the case is named after.
@pytest.mark.parametrize("command", ["inspect", "diff"])
@pytest.mark.parametrize("case", DAMAGES)
def test_what_is_damaged_is_status_1_with_the_remedy(tmp_path: Path, case: str, command: str) -> None:
    """Nothing is printed of it, and the line says which of two it is."""
    sound, _ = make_tiny_artifact(tmp_path / "sound")
    artifact, _ = make_tiny_artifact(tmp_path / "damaged")
    damage, expected = DAMAGES[case]
    damage(artifact)
    result = halogen(command, *([sound] if command == "diff" else []), artifact)
    assert (1, "") == (result.exit_code, result.stdout)
    assert isinstance(result.exception, CommandError)
    assert str(result.exception).startswith(f"{artifact}: ")
    assert expected in str(result.exception)
    assert any(remedy in str(result.exception) for remedy in ("again", "halogen convert"))


def test_a_quick_look_leaves_the_blocks_unread(tmp_path: Path) -> None:
    """All else is checked as ever."""
    artifact, _ = make_tiny_artifact(tmp_path)
    flip(artifact / "model.halogen")
    assert 0 == halogen("inspect", artifact, "--quick").exit_code
    assert 0 == halogen("diff", artifact, artifact, "--quick").exit_code
    flip(artifact / "tokenizer.json")
    assert 1 == halogen("inspect", artifact, "--quick").exit_code


def test_inspect_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    """The refusal is the one that a loader would give, also where no manifest names the file."""
    artifact, _ = make_tiny_artifact(tmp_path)
    weights = artifact / "model.halogen"
    flip(weights)
    assert "block 0 of 1 does not match" in str(halogen("inspect", weights).exception)
    os.truncate(weights, weights.stat().st_size - 1)
    assert "model.halogen, length: the file has" in str(halogen("inspect", weights).exception)
    weights.write_bytes(bytes(8192))
    assert "model.halogen, preamble: not a weight file" in str(halogen("inspect", weights).exception)
    assert "no such file" in str(halogen("inspect", tmp_path / "nothing").exception)
    assert "/dev/zero: a device or a pipe, no file" in str(halogen("inspect", "/dev/zero").exception)


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
