"""Artifacts whose weights have scales: whole and rightly digested, whatever the scales are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from services.common.checkpoint import writer
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.manifest import Manifest, Role
from services.common.checkpoint.quantisation import Quantisation
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.writer import write_weights
from tests.tiny_checkpoints import make_tiny_artifact

SPECS = (
    TensorSpec(name="t", dtype=DType.INT8, shape=(4,), quantisation=Quantisation(scales="s", block=(2,))),
    TensorSpec(name="s", dtype=DType.FP16, shape=(2,)),
)


def make_scaled_artifact(directory: Path, scales: bytes) -> tuple[Path, Manifest]:
    """A tiny artifact with other weights: four int8 elements, and two fp16 `scales` that no writer looked at."""
    artifact, manifest = make_tiny_artifact(directory)
    path = artifact / "model.halogen"
    path.unlink()
    contents = {"t": bytes(4), "s": scales}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "check_finite", lambda *_: None)
        header = write_weights(path, SPECS, manifest.architecture, lambda entry: [contents[entry.name]])
    required = dataclasses.replace(manifest, requires=Requirements.of(header, manifest.requires.hosts))
    return artifact, name_weights(artifact, required, header.identity)


def name_weights(artifact: Path, manifest: Manifest, identity: str) -> Manifest:
    """Writes and returns the manifest that vouches for the weights as they lie there now."""
    size_bytes = (artifact / manifest.weights.path).stat().st_size
    files = [
        dataclasses.replace(file, sha256=identity, size_bytes=size_bytes)
        if file.role is Role.WEIGHTS
        else file
        for file in manifest.files
    ]
    made = dataclasses.replace(manifest, files=tuple(files))
    (artifact / "manifest.json").write_bytes(made.encode())
    return made
