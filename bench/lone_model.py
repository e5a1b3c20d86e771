"""A model on an arena in this process, as an engine's process has them by default; its weights come from a loader."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import torch

from services.common.ids import ArtifactId
from services.common.rpc.client import connect
from services.engine.arena import Arena
from services.engine.config import EngineConfig
from services.engine.engine import Engine
from services.engine.kernels.choice import choose_kernels
from services.engine.lender import LoadedModel
from services.engine.loaded_model import ModelLoading, ModelOnArena
from services.engine.loader_client import LoaderClient


class LoneModel(NamedTuple):
    """What computes, and where its keys and values lie."""

    model: ModelOnArena
    arena: Arena

    @contextlib.contextmanager
    def use(self) -> Iterator[LoadedModel]:
        """Lends the model for good."""
        yield self.model


def default(name: str) -> Any:
    """What an engine's setting is where nobody says anything."""
    return EngineConfig.model_fields[name].get_default(call_default_factory=True)


@contextlib.asynccontextmanager
async def lone_model(
    loader: str, artifact_id: ArtifactId, threads: int, arena_bytes: int
) -> AsyncIterator[LoneModel]:
    """Has the loader prepare the artifact, and keeps the model for the scope.

    Args:
        loader: Its address.
        threads: That compute.
    """
    torch.set_num_threads(threads)
    arena = Arena(arena_bytes, min_free_ratio=default("kv_block_pool_min_free_ratio"))
    kernels = choose_kernels(default("kernels"), threads)
    same = {name: default(name) for name in ("dtype", "max_model_len", "kv_dtype")}
    loading = ModelLoading(arena=arena, kernels=kernels, **same)
    async with connect(loader) as channel:
        prepared = await LoaderClient(channel, loading.layout).prepare(artifact_id)
        yield LoneModel(loading.load(prepared), arena)


def engine_on(arena: Arena) -> Engine:
    """As an engine's process makes it, but that it keeps no prompts."""
    same = {name: default(name) for name in ("chunk_tokens", "max_batch", "step_timeout_s")}
    return Engine(arena, **same, prefix_cache=False, swap_bytes=default("kv_swap_bytes"))
