"""``python -m bench.first_token LOADER``: the first token of a model, twice over.

A line ``v2 ARTIFACT_ID`` has the loader prepare an artifact and uses the weights where they are mapped; ``v1 FOLDER``
reads a safetensors file and copies its tensors, as whoever has no loader does. Both make the same decoder of them and
give it the same prompt. The answer tells the seconds until the weights were in their places, and until the token: for v2
from PrepareArtifact on, which an engine calls once the manifest has told it that it can serve the artifact.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc
import torch
from safetensors.torch import load

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import EMBEDDING, HEAD
from services.common.checkpoint.dtype import DType
from services.common.ids import ArtifactId
from services.common.rpc.client import connect
from services.common.telemetry.logs import configure_logs
from services.engine.arena import Arena
from services.engine.host import usable_cores
from services.engine.kernels.choice import choose_kernels
from services.engine.kernels.protocol import Kernels
from services.engine.kv_format import KvFormat
from services.engine.loaded_model import ModelLoading, ModelOnArena
from services.engine.loader_client import LoaderClient
from services.engine.model.llama_weights import LayerWeights, LlamaWeights
from services.engine.suitability import check_suitable, offer_of
from services.engine.trial import decode

_ARENA_BYTES: Final = 256 << 20
_PROMPT: Final = tuple(range(1, 17))
_POSITIONS: Final = 2048
Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """When what was there, in seconds from the beginning."""

    loaded_s: float
    first_token_s: float
    token: int


class Starter:
    """Starts models in this process, one after the other.

    Args:
        channel: To the loader.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._arena = Arena(_ARENA_BYTES)
        self._kernels = choose_kernels("auto", usable_cores())
        self._loading = ModelLoading(
            arena=self._arena, kernels=self._kernels, dtype="auto", max_model_len=_POSITIONS
        )
        self._client = LoaderClient(channel, self._loading.layout)

    async def start(self, path: str, what: str) -> Start:
        """By the path `v1` or `v2`."""
        if path == "v2":
            await self._look_at(ArtifactId(what))
        began_s = time.perf_counter()
        model = await self._mapped(ArtifactId(what)) if path == "v2" else self._copied(Path(what))
        loaded_s = time.perf_counter() - began_s
        choice = next(decode(model, self._arena, _PROMPT, 1))
        return Start(loaded_s, time.perf_counter() - began_s, choice.token)

    async def _look_at(self, artifact_id: ArtifactId) -> None:
        """What an engine does before it has an artifact prepared."""
        manifest = await self._client.manifest(artifact_id)
        check_suitable(manifest, offer_of("auto"))
        self._loading.check_memory(manifest, is_nearby=False)

    async def _mapped(self, artifact_id: ArtifactId) -> ModelOnArena:
        return self._loading.load(await self._client.prepare(artifact_id))

    def _copied(self, folder: Path) -> ModelOnArena:
        config = json.loads((folder / "config.json").read_text())
        architecture = Architecture.from_config(config, DType.BF16)
        weights = copied(load((folder / "model.safetensors").read_bytes()), architecture)
        return _on_arena(self._kernels, self._arena, architecture, weights)


def copied(tensors: Tensors, architecture: Architecture) -> LlamaWeights:
    """The decoder's own tensors, each a copy."""
    embedding = tensors[EMBEDDING].clone()
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(_layer(tensors, f"model.layers.{i}.") for i in range(architecture.num_hidden_layers)),
        norm=tensors["model.norm.weight"].clone(),
        head=embedding if architecture.tie_word_embeddings else tensors[HEAD].clone(),
    )


def _layer(tensors: Tensors, prefix: str) -> LayerWeights:
    def copy(*names: str) -> torch.Tensor:
        return torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])

    return LayerWeights(
        attention_norm=copy("input_layernorm"),
        qkv=copy("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qkv_bias=None,
        output=copy("self_attn.o_proj"),
        mlp_norm=copy("post_attention_layernorm"),
        gate_up=copy("mlp.gate_proj", "mlp.up_proj"),
        down=copy("mlp.down_proj"),
    )


def _on_arena(
    kernels: Kernels, arena: Arena, architecture: Architecture, weights: LlamaWeights
) -> ModelOnArena:
    kv = KvFormat.of(architecture, "auto", DType.BF16)
    return ModelOnArena(
        kernels.decoder(architecture, weights, kv, _POSITIONS),
        arena,
        vocab_size=architecture.vocab_size,
        max_context_tokens=_POSITIONS,
        weights_bytes=0,
        artifact_id=ArtifactId(""),
        built=None,
    )


async def main(address: str) -> None:
    configure_logs("first-token", "warning")
    torch.set_num_threads(usable_cores())
    async with connect(address) as channel:
        await channel.channel_ready()
        starter = Starter(channel)
        print("ready", flush=True)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split(maxsplit=1):
            print(json.dumps(dataclasses.asdict(await starter.start(words[0], words[1].strip()))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
