"""Seeded random checkpoints of the Llama or Qwen2 family, of any small shape, as Hugging Face directories and as artifacts.

Norm weights are random too: an engine that left them out would show. The tokenizer is stories-v1's, so a
vocabulary of at least 512 entries is what its ids need.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import ANYWHERE, Hosts, Requirements
from services.loader.bfloat16 import to_bfloat16
from services.loader.conversion import convert
from services.loader.safetensors_writer import write_safetensors

STORIES: Final = Path(__file__).parent / "models" / "stories-v1"

_DTYPES: Final = {"uint16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}
_CLASSES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_TORCH_NAMES: Final = {DType.BF16: "bfloat16", DType.FP16: "float16", DType.FP32: "float32"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """A decoder small enough for tests; `num_key_value_heads` below `num_attention_heads` is GQA."""

    hidden_size: int = 64
    intermediate_size: int = 96
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 512
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    dtype: DType = DType.BF16
    model_type: str = "llama"

    def config(self) -> dict[str, Any]:
        """Hugging Face's config.json."""
        fields = dataclasses.asdict(self)
        return {
            **{name: value for name, value in fields.items() if name != "dtype"},
            "architectures": [_CLASSES[self.model_type]],
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_scaling": None,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": _TORCH_NAMES[self.dtype],
        }


MULTI_BLOCK: Final = TinyShape(  # 3 digest blocks of 4 MiB
    hidden_size=512, intermediate_size=1024, num_attention_heads=8, head_dim=64, num_key_value_heads=8
)


def write_tiny_checkpoint(
    directory: Path, shape: TinyShape = TinyShape(), *, seed: int = 0, shards: int = 1
) -> Path:
    """Writes a checkpoint with tokenizer to `directory` (made here) and returns it.

    Args:
        shards: Above 1: so many safetensors files and an index.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(shape, seed)
    (directory / "config.json").write_text(json.dumps(shape.config(), indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(STORIES / name, directory / name)
    write_shards(directory, tensors, shards)
    return directory


def make_tiny_artifact(
    directory: Path,
    shape: TinyShape = TinyShape(),
    *,
    seed: int = 0,
    options: ConversionOptions = DEFAULTS,
) -> tuple[Path, Manifest]:
    """A checkpoint written and converted below `directory`; returns the artifact's directory and manifest."""
    source = write_tiny_checkpoint(directory / f"source-{seed}", shape, seed=seed)
    destination = directory / f"artifact-{seed}"
    return destination, convert(source, destination, options=options)


def requirements_of(architecture: Architecture, hosts: Hosts = ANYWHERE) -> Requirements:
    """What an artifact of plain weights of that architecture requires."""
    return Requirements.of(Header.lay_out(decoder_tensors(architecture), architecture), hosts)


def random_tensors(shape: TinyShape, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Every tensor by name, in `shape.dtype`; bf16 as uint16."""
    rng = np.random.default_rng(seed)
    architecture = Architecture.from_config(shape.config(), shape.dtype)
    return {
        spec.name: encode(_random(rng, spec.shape), shape.dtype) for spec in decoder_tensors(architecture)
    }


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)


def encode(values: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[Any]:
    """float32 in `dtype`; bf16 comes as uint16."""
    if dtype is DType.FP32:
        return values
    if dtype is DType.FP16:
        return values.astype(np.float16)
    return to_bfloat16(values)


def write_shards(directory: Path, tensors: dict[str, npt.NDArray[Any]], shards: int = 1) -> None:
    """Writes model.safetensors, or `shards` files and their index."""
    if shards == 1:
        write_tensors(directory / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    for index in range(shards):
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[index::shards]}
        write_tensors(directory / name, part)
        weight_map |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def write_tensors(path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Writes one safetensors file; uint16 is bf16."""
    specs = [
        TensorSpec(name=name, dtype=_DTYPES[value.dtype.name], shape=value.shape)
        for name, value in tensors.items()
    ]
    write_safetensors(path, specs, (value.tobytes() for value in tensors.values()))
