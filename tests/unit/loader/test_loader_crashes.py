"""kill -9 of a loader at any point of a load: nothing is believed that does not verify, and nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import random
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.verified_artifact import read_header
from services.common.errors import Unavailable
from services.common.ids import ArtifactId, ModelName
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import ArtifactRecord, ArtifactState
from services.common.rpc.status import from_rpc_error
from services.gateway.artifacts import ArtifactOrder, Verified
from services.gateway.control import Control
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact
from tests.unit.loader.children import BLOCK, ChildLoader, child_loader
from tests.unit.loader.disk import flip

KILLS: Final = int(os.environ.get("HALOGEN_LOADER_KILLS", "6"))
MODEL: Final = ModelName("m")
NAMED: Final = "services.loader.place:Holding:closing"
AT_ANY_TIME: Final = ""
POINTS: Final = (  # in the order of a load; what is left at NAMED is then adopted
    "services.loader.shared_directory:SharedDirectory:create",
    "services.loader.directory_place:FileSlot:allocate",
    "services.loader.shared_mapping:SharedMapping:populate",
    BLOCK,
    f"{BLOCK}=2",
    "services.loader.shared_directory:UnfinishedFile:finish",
    NAMED,
    "services.loader.adoption:Adoption:run",
    AT_ANY_TIME,
    AT_ANY_TIME,
)


class Pair(NamedTuple):
    """An artifact that is whole, and one with a wrong bit."""

    store: Path
    shm: Path
    whole: StoredArtifact
    damaged: StoredArtifact

    async def states(self, loader: ChildLoader) -> tuple[ArtifactState, ArtifactState]:
        """What a registry says of the two when their registrations have ended, however they did."""
        whole, damaged = (registered(loader, each.manifest) for each in (self.whole, self.damaged))
        states = await asyncio.gather(whole, damaged)
        return states[0], states[1]

    def check_memory(self) -> None:
        """Whatever has a name in shared memory is the whole artifact."""
        content = self.whole.path(self.whole.manifest.weights).read_bytes()
        for path in named(self.shm):
            assert (self.whole.manifest.id, content) == (path.name, path.read_bytes())


@pytest.fixture
def pair(stored: StoredArtifact, store: ArtifactStore, shm: Path, tmp_path: Path) -> Pair:
    made, _ = make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=1)
    damaged = store.open(store.put(made))
    damaged.path(damaged.manifest.weights).chmod(0o644)
    return Pair(store.root, shm, stored, damaged)


async def registered(loader: ChildLoader, manifest: Manifest) -> ArtifactState:
    registry = MemoryStore()
    control = Control.on(registry, functools.partial(verify, loader))
    order = ArtifactOrder(MODEL, manifest.encode(), b"", reverify=False, who="test", why="test")
    with contextlib.suppress(Unavailable):
        async for _ in control.artifacts.register(order):
            pass
    entry = await registry.get(keys.artifact(MODEL, manifest.id))
    assert entry
    return ArtifactRecord.decode(entry.value).state


async def verify(
    loader: ChildLoader, artifact_id: ArtifactId, *, verify_only: bool
) -> AsyncGenerator[Verified, None]:
    assert not verify_only
    try:
        await loader.prepare(artifact_id)
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
    yield Verified(1, 1)


def named(shm: Path) -> list[Path]:
    return [path for path in shm.rglob("*") if path.is_file() and not path.name.startswith(".")]


@contextlib.contextmanager
def wrong_bit(artifact: StoredArtifact, chance: random.Random) -> Iterator[None]:
    weights = artifact.manifest.weights
    position = chance.randrange(read_header(artifact).data_offset, weights.size_bytes)
    flip(artifact.path(weights), position)
    yield
    flip(artifact.path(weights), position)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_loader_killed_at_any_point_of_a_load(pair: Pair) -> None:
    """READY is what verifies and nothing else; the next loader finds what it can use, and clears away the rest.

    Fault injection: turns red when SharedDirectory.create makes the file under its own name, or sweep removes nothing.
    """
    chance = random.Random(4)
    whole_s = await check_next(pair, chance)
    for point in itertools.islice(itertools.cycle(POINTS), KILLS):
        with wrong_bit(pair.damaged, chance):
            states = await kill_at(point, pair, chance.uniform(0, whole_s))
        assert states[0] in {ArtifactState.PENDING, ArtifactState.READY}
        assert states[1] in {ArtifactState.PENDING, ArtifactState.REJECTED}
        pair.check_memory()
        if point != NAMED:  # what that one leaves is for the next to adopt
            await check_next(pair, chance)


async def kill_at(point: str, pair: Pair, at_latest_s: float) -> tuple[ArtifactState, ArtifactState]:
    """Kills a loader at a point of the two loads, or at some time; what a registry then says."""
    async with child_loader(pair.store, pair.shm, held_at=point) as loader:
        states = asyncio.create_task(pair.states(loader))
        held = asyncio.create_task(loader.begun())
        patience_s = None if point else at_latest_s
        await asyncio.wait({states, held}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        await loader.kill()
        return await states


async def check_next(pair: Pair, chance: random.Random) -> float:
    """The next loader serves the one, refuses the other, and leaves nothing; returns how long its loads took."""
    async with child_loader(pair.store, pair.shm) as loader:
        assert [] == list(pair.shm.rglob(".*.writing"))
        begun_s = time.monotonic()
        with wrong_bit(pair.damaged, chance):
            assert (ArtifactState.READY, ArtifactState.REJECTED) == await pair.states(loader)
        took_s = time.monotonic() - begun_s
        assert [pair.whole.manifest.id] == [path.name for path in pair.shm.rglob("*") if not path.is_dir()]
        pair.check_memory()
        await loader.end()
    assert [] == list(pair.shm.iterdir())
    assert {pair.whole.manifest.id, pair.damaged.manifest.id} == {path.name for path in pair.store.iterdir()}
    return took_s
