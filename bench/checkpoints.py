"""Random Llama checkpoints of real sizes: safetensors, an artifact in a store, PyTorch's zip file."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file

from bench.program import REPOSITORY
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import TensorSpec
from services.common.errors import HalogenError
from services.common.ids import ArtifactId
from services.loader.conversion import convert
from services.loader.safetensors_writer import write_safetensors

_TEXT: Final = REPOSITORY / "tests" / "models" / "stories-v1"
_ONE: Final = 0x3F80  # in bf16
_SIGN_AND_MANTISSA: Final = 0x807F
_EXPONENT: Final = 0x3C00  # 2^-7: every value is between that and twice that, whatever its sign


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama decoder in bf16."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int = 32_000
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False

    def config(self) -> dict[str, Any]:
        """Hugging Face's config.json."""
        constants = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
        rest = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None}
        return {**dataclasses.asdict(self), **constants, **rest, "bos_token_id": 0, "eos_token_id": 0}

    @property
    def token_bytes(self) -> int:
        """Of one token's keys and values, in bf16."""
        head_dim = self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * self.num_key_value_heads * head_dim * DType.BF16.bits // 8

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(decoder_tensors(Architecture.from_config(self.config(), DType.BF16)))


BIG: Final = Shape(  # 3.75 GB in 291 tensors
    hidden_size=2048,
    intermediate_size=7168,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
TINY_LLAMA: Final = Shape(  # 1.1 billion weights, as TinyLlama has them
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
)
SMALL: Final = Shape(  # 64 MB
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=10,
    num_attention_heads=8,
    num_key_value_heads=8,
    vocab_size=512,
)


def stories_text(folder: Path) -> None:
    """Writes the tokenizer of the story models, which have 512 tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(_TEXT / name, folder / name)


def source(
    folder: Path, shape: Shape, seed: int, write_text: Callable[[Path], object] = stories_text
) -> Path:
    """A Hugging Face directory with one safetensors file; made if it is not there.

    Args:
        folder: Where.
        shape: Of the model.
        seed: Of its weights.
        write_text: Writes its tokenizer into a folder.
    """
    return _made(folder, lambda making: _write_source(making, shape, seed, write_text))


def artifact(store: Path, origin: Path) -> ArtifactId:
    """The artifact of a source, in a store; converted if it is not there, or no longer read."""
    id_file = origin.with_name(f"{origin.name}.id")
    try:
        ArtifactStore(store).open(artifact_id := ArtifactId(id_file.read_text()))
    except (FileNotFoundError, HalogenError):
        making = store / ".making"
        shutil.rmtree(making, ignore_errors=True)
        artifact_id = ArtifactStore(store).adopt(making, convert(origin, making))
        id_file.write_text(artifact_id)
    return artifact_id


def torch_file(path: Path, origin: Path) -> Path:
    """The source's tensors as torch.save writes them; made if it is not there."""
    return _made(path, lambda making: torch.save(load_file(origin / "model.safetensors"), making))


def _made(path: Path, make: Callable[[Path], object]) -> Path:
    if not path.exists():
        making = path.with_name(f".making-{path.name}")
        if making.is_dir():
            shutil.rmtree(making)
        make(making)
        making.rename(path)
    return path


def _write_source(folder: Path, shape: Shape, seed: int, write_text: Callable[[Path], object]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    write_text(folder)
    write_safetensors(folder / "model.safetensors", shape.specs, _contents(shape, seed))


def _contents(shape: Shape, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for spec in shape.specs:
        if len(spec.shape) == 1:
            yield np.full(spec.shape, _ONE, np.uint16).tobytes()
        else:
            bits = np.frombuffer(rng.bytes(spec.nbytes), np.uint16)
            yield (bits & _SIGN_AND_MANTISSA | _EXPONENT).astype(np.uint16, copy=False).tobytes()
