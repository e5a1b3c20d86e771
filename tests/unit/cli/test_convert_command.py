"""`halogen convert`: every option reaches the converter, and what there is to know is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from services.cli import up
from services.cli.console import CommandError
from services.cli.home import Home
from services.cli.main import app
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import Storage
from services.common.checkpoint.load_format import LoadFormat
from services.common.checkpoint.requirements import Hosts
from tests.tiny_checkpoints import TinyShape, random_tensors, write_tiny_checkpoint
from tests.unit.loader.gguf_files import random_values, write_gguf

SHAPE = TinyShape(dtype=DType.FP32)


def training_checkpoint(directory: Path) -> Path:
    """A float32 checkpoint with an optimizer's step beside the weights."""
    source = write_tiny_checkpoint(directory, SHAPE)
    (source / "model.safetensors").unlink()
    state = {"optimizer.state.0.step": np.array([3])}
    save_file(random_tensors(SHAPE, 0) | state, source / "model.safetensors")
    return source


def test_every_option_is_heeded(tmp_path: Path) -> None:
    """bf16, divided in two with blocks of 16 rows, validated; the notes are on standard error."""
    source, target = training_checkpoint(tmp_path / "source"), tmp_path / "artifact"
    options = ["--quant-policy", "bf16", "--tensor-parallel-size", "2", "--block-size", "16"]
    options += ["--validate", "full", "--drop-optimizer-state", "--json"]
    options += ["--require-runtime", ">= 0.1, <2", "--require-device-class", "cpu"]
    made = CliRunner().invoke(app, ["convert", str(source), str(target), *options])
    manifest = read_manifest(target)
    assert {"artifact_id": manifest.id, "directory": str(target)} == json.loads(made.stdout)
    header = Header.decode((target / "model.halogen").read_bytes())
    assert Hosts("<2,>=0.1", ("cpu",)) == manifest.requires.hosts
    assert (DType.BF16, Storage(16, 2)) == (manifest.architecture.dtype, header.storage)
    for note in (
        "dropped training state, 8 bytes: optimizer.state.0.step",
        "rounded to bf16",
        "validated (full)",
    ):
        assert note in made.stderr


def test_training_state_is_refused_when_it_is_not_to_be_dropped(tmp_path: Path) -> None:
    """One line, with the option that drops it."""
    source = training_checkpoint(tmp_path / "source")
    result = CliRunner().invoke(
        app, ["convert", str(source), str(tmp_path / "artifact"), "--no-drop-optimizer-state"]
    )
    assert isinstance(result.exception, CommandError)
    assert "convert with --drop-optimizer-state" in str(result.exception)


def test_options_travel_as_arguments() -> None:
    """What the command line of the converter is given says all of it."""
    options = ConversionOptions(
        quant_policy=QuantPolicy.FP16,
        drop_optimizer_state=False,
        storage=Storage(8, 4),
        validation=Validation.SAMPLE,
    )
    assert (
        "--quant-policy=fp16",
        "--no-drop-optimizer-state",
        "--block-size=8",
        "--tensor-parallel-size=4",
        "--validate=sample",
    ) == options.arguments()


def test_the_remedy_for_a_quantised_source_is_a_command_that_works(tmp_path: Path) -> None:
    """Whoever serves one by --model-path has no policy to give, perhaps: the line names the command, which makes what
    is then served.

    Fault injection: turns red when `apply_policy` names the option alone.
    """
    source, target = write_gguf(tmp_path / "m.gguf", random_values()), tmp_path / "artifact"
    home = Home(tmp_path / "home")
    with pytest.raises(CommandError) as refused:
        up.prepare(home, None, source, LoadFormat.AUTO)
    said = re.search(r"halogen (convert .* SRC DST)", str(refused.value))
    assert said is not None, str(refused.value)
    paths = {"SRC": str(source), "DST": str(target)}
    CliRunner().invoke(app, [paths.get(word, word) for word in said[1].split()], catch_exceptions=False)
    assert up.Plan("artifact", target) == up.prepare(home, None, target, LoadFormat.AUTO)
