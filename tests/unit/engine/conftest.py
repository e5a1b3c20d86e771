"""Models for the engine's tests, converted once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.common.checkpoint.dtype import DType
from services.engine.kernels.cpu.library import INSTRUCTION_SETS, InstructionSet
from services.engine.kernels.cpu.native_kernels import NativeKernels, obstacle
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels
from services.loader.conversion import convert
from tests.tiny_checkpoints import TinyShape, write_tiny_checkpoint
from tests.unit.engine.packing import PackingKernels

MODELS = Path(__file__).parents[2] / "models"
SHAPES = {
    "grouped": TinyShape(num_attention_heads=6, num_key_value_heads=2, head_dim=16, hidden_size=96),
    "odd_sizes": TinyShape(
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=10,
        hidden_size=50,
        intermediate_size=70,
        vocab_size=515,
        tie_word_embeddings=True,
    ),
    "wide_heads": TinyShape(
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=128,
        hidden_size=64,
        rope_theta=100_000.0,
        dtype=DType.FP32,
    ),
    "biased": TinyShape(model_type="qwen2", tie_word_embeddings=True),
}


_PACKED = tuple(f"{name} packed" for name in INSTRUCTION_SETS)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for each other on a busy machine
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hugging Face directories by name: the two story models and random shapes."""
    root = tmp_path_factory.mktemp("checkpoints")
    stories = {name: MODELS / name for name in ("stories-v1", "stories-v2")}
    return stories | {
        name: write_tiny_checkpoint(root / name, shape, seed=3) for name, shape in SHAPES.items()
    }


@pytest.fixture(scope="session")
def artifacts(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same, converted."""
    root = tmp_path_factory.mktemp("artifacts")
    for name, checkpoint in checkpoints.items():
        convert(checkpoint, root / name)
    return {name: root / name for name in checkpoints}


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def instructions(request: pytest.FixtureRequest) -> InstructionSet:
    """Every native set that this machine and build can run."""
    name: InstructionSet = request.param
    if why := obstacle(name):
        pytest.skip(f"{name}: {why}")
    return name


@pytest.fixture(scope="session", params=["portable", *INSTRUCTION_SETS, *_PACKED])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Every set of kernels that this machine and build can run."""
    if request.param == "portable":
        return PortableKernels()
    name, _, packed = request.param.partition(" ")
    if why := obstacle(name):
        pytest.skip(f"{name}: {why}")
    return PackingKernels(name, 1) if packed else NativeKernels(name, 1)
