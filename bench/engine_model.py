"""Models of random weights in the forms that everybody reads, made on the spot and kept in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final, NamedTuple

from bench import checkpoints
from bench.checkpoints import SMALL, TINY_LLAMA, Shape
from bench.gguf_model import write_gguf
from bench.made_tokenizer import MadeTokenizer
from services.common.ids import ArtifactId

_POSITIONS: Final = 8192  # longer than anything that is asked
SHAPES: Final = {
    "small": Shape(  # SmolLM2-135M's
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49_152,
        max_position_embeddings=_POSITIONS,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    ),
    "tiny": dataclasses.replace(SMALL, max_position_embeddings=_POSITIONS),
    "medium": dataclasses.replace(TINY_LLAMA, max_position_embeddings=_POSITIONS),
}


class EngineModel(NamedTuple):
    """One model.

    Attributes:
        hugging_face: Its directory of safetensors, for vLLM.
        gguf: Its file for llama.cpp.
        store: Where its artifact lies, for us.
        cache: Where loaders keep what they make of it.
    """

    shape: Shape
    hugging_face: Path
    gguf: Path
    store: Path
    cache: Path
    artifact_id: ArtifactId


def step_bytes(name: str) -> int:
    """What one step of one stream reads of a model's weights: all of them, but for an untied embedding."""
    shape = SHAPES[name]
    specs = shape.specs if shape.tie_word_embeddings else shape.specs[1:]
    return sum(spec.nbytes for spec in specs)


def made(folder: Path, name: str) -> EngineModel:
    """The model of that name, made in `folder` as far as it is not there."""
    shape = SHAPES[name]
    tokenizer = MadeTokenizer.of(shape.vocab_size)
    origin = checkpoints.source(folder / name, shape, seed=0, write_text=tokenizer.write)
    gguf = folder / f"{name}.gguf"
    if not gguf.exists():
        making = folder / f".making-{name}.gguf"
        write_gguf(making, origin, shape, tokenizer)
        making.rename(gguf)
    store = folder / "store"
    return EngineModel(shape, origin, gguf, store, folder / "cache", checkpoints.artifact(store, origin))
