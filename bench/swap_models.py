"""Pairs of artifacts of one shape that answer differently, in a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from bench import checkpoints
from bench.checkpoints import Shape
from bench.program import REPOSITORY
from services.cli import demo
from services.cli.home import Home
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.ids import ArtifactId

_NOISE: Final = 0.02  # of a weight
_STORIES: Final = REPOSITORY / "tests" / "models"

Pair = tuple[ArtifactId, ArtifactId]


def stories(store: Path, folder: Path) -> Pair:
    """The two story models."""
    first, second = (_converted(store, folder, _STORIES / f"stories-v{number}") for number in (1, 2))
    return first, second


def smollm2(store: Path, folder: Path) -> Pair:
    """SmolLM2-135M, and the same with noise on its weights."""
    (home := Home.find()).make()
    model = demo.ensure(home.models)
    noisy = _noisy(folder / "smollm2-noisy", model.hugging_face)
    second = checkpoints.artifact(store, noisy)
    shutil.rmtree(noisy)
    return ArtifactStore(store).put(model.artifact), second


def random_ones(store: Path, folder: Path, name: str, shape: Shape) -> Pair:
    """Two of random weights."""
    first, second = (_random(store, folder / f"{name}-{seed}", shape, seed) for seed in (0, 1))
    return first, second


def _random(store: Path, folder: Path, shape: Shape, seed: int) -> ArtifactId:
    artifact_id = checkpoints.artifact(store, checkpoints.source(folder, shape, seed))
    shutil.rmtree(folder)
    return artifact_id


def _converted(store: Path, folder: Path, source: Path) -> ArtifactId:
    copy = folder / source.name
    shutil.copytree(source, copy)
    return checkpoints.artifact(store, copy)


def _noisy(folder: Path, source: Path) -> Path:
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    chance = torch.Generator().manual_seed(1)
    tensors = load_file(file)
    for tensor in tensors.values():
        noise = torch.randn(tensor.shape, generator=chance)
        tensor.mul_((1 + _NOISE * noise).to(tensor.dtype))
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
