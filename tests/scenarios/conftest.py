"""Systems to run scenarios on, and what they serve."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from services.loader.conversion import convert
from tests.scenarios import cluster
from tests.scenarios.cluster import Cluster, Settings
from tests.tiny_checkpoints import TinyShape, make_tiny_artifact

MODELS = Path(__file__).parents[1] / "models"
DRIVERS: dict[str, Callable[[Path, Settings], AbstractAsyncContextManager[Cluster]]] = {
    "in_process": cluster.in_process,
    "processes": cluster.processes,
}

LONG_CONTEXT = TinyShape(max_position_embeddings=32_768)
StartCluster = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=sorted(DRIVERS))
def driver(request: pytest.FixtureRequest) -> str:
    """Which of the two systems; a scenario that takes this fixture runs on both."""
    name: str = request.param
    return name


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartCluster]:
    """Starts a system that ends with the test: ``await start(driver, engine={"kv_arena_bytes": ...})``."""
    async with AsyncExitStack() as scope:

        async def begin(driver: str, **settings: dict[str, Any]) -> Cluster:
            return await scope.enter_async_context(DRIVERS[driver](tmp_path, settings))

        yield begin


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two story models as artifacts, by name."""
    root = tmp_path_factory.mktemp("stories")
    for name in ("stories-v1", "stories-v2"):
        convert(MODELS / name, root / name)
    return {name: root / name for name in ("stories-v1", "stories-v2")}


@pytest.fixture(scope="session")
def long_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that takes 32,768 tokens."""
    artifact, _ = make_tiny_artifact(tmp_path_factory.mktemp("long"), LONG_CONTEXT, seed=5)
    return artifact


@pytest.fixture(scope="session")
def three_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose weights fill three digest blocks of 4 MiB."""
    shape = TinyShape(hidden_size=256, intermediate_size=1024, num_hidden_layers=5)
    artifact, manifest = make_tiny_artifact(tmp_path_factory.mktemp("blocks"), shape, seed=6)
    assert 3 == manifest.weights.size_bytes // (4 << 20)
    return artifact
