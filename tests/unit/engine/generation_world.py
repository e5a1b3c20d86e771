"""A manager of generations on a registry in memory, with a loader that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from services.common.background import background
from services.common.errors import HalogenError
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.publish_records import Strategy, SwapMode
from services.common.registry.records import GenerationRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.common.registry.view import View
from services.engine.arena import Arena
from services.engine.assignments import Assignments, ServedPairs
from services.engine.engine import Engine
from services.engine.generation_load import Verified
from services.engine.generation_manager import GenerationManager
from services.engine.generations import Generations
from services.engine.kernels.portable import PortableKernels
from services.engine.lender import LoadedModel
from services.engine.loaded_model import ModelLoading, PreparedArtifact
from services.engine.sequence import TokenRequest
from services.engine.swap_policy import SwapPolicy
from services.engine.token_stream import TokenStream
from tests.unit.engine.fakes import CountingModel

OLD, NEW, THIRD = (ArtifactId(letter * 64) for letter in "abc")
AS_THE_ENGINE_HAS_IT = Strategy()
POLICY = SwapPolicy(SwapMode.ATOMIC_SWAP, timeout_s=600, fallback_on_failure=True, memory_guard_ratio=1)
MODEL, STABLE, CANARY = ModelName("m"), Cohort.STABLE, Cohort.CANARY


class FakeLoader:
    """Prepares at once, unless told to fail or to wait."""

    def __init__(self) -> None:
        self.asked: list[ArtifactId] = []
        self.checked: list[ArtifactId] = []
        self.failures: dict[ArtifactId, list[HalogenError]] = {}
        self.held: dict[ArtifactId, asyncio.Event] = {}
        self.real: dict[ArtifactId, PreparedArtifact] = {}
        self.texts: dict[ArtifactId, dict[str, bytes]] = {}

    async def check(self, artifact_id: ArtifactId) -> None:
        self.checked.append(artifact_id)

    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact:
        self.asked.append(artifact_id)
        if artifact_id in self.held:
            await self.held[artifact_id].wait()
        if failures := self.failures.get(artifact_id):
            raise failures.pop(0)
        nothing = PreparedArtifact(artifact_id=artifact_id, weights=Path(), identity="", config=b"")
        return self.real.get(artifact_id, nothing)

    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        return self.texts.get(artifact_id, {})


class _FakeVerified(NamedTuple):
    world: World
    artifact_id: ArtifactId

    def build(self, _stop: threading.Event) -> LoadedModel:
        return self.world.build(self.artifact_id)


class World:
    """A manager on an in-memory registry, and what it has told."""

    def __init__(self, ticket_ttl_s: float, serves: tuple[str, ...], max_drain_s: float) -> None:
        self.store = MemoryStore()
        self.loader = FakeLoader()
        arena = Arena(8 << 20)
        self.loading = ModelLoading(arena=arena, kernels=PortableKernels(), dtype="auto", max_model_len=0)
        self.engine = Engine(arena, chunk_tokens=64, max_batch=8, check_every_step=True)
        self.models: dict[ArtifactId, CountingModel] = {}
        self.building: dict[ArtifactId, Callable[[], LoadedModel]] = {}  # instead of an entry of `models`
        self.begun = threading.Event()  # a load is in its thread
        self.records: tuple[GenerationRecord, ...] = ()
        self.history: list[dict[ArtifactId, State]] = []
        self._moved = asyncio.Event()
        self._revision = itertools.count(1)
        self.generations = Generations(
            Assignments(ServedPairs.parse(serves), POLICY), ticket_ttl_s=ticket_ttl_s, max_drain_s=max_drain_s
        )
        self.manager = GenerationManager(
            self.generations,
            engine=self.engine,
            loader=self.loader,
            verify=self._verify,
            changed=self._on_change,
        )

    def _verify(self, prepared: PreparedArtifact) -> Verified:
        return self.loading.verify(prepared) if prepared.config else _FakeVerified(self, prepared.artifact_id)

    def build(self, artifact_id: ArtifactId) -> LoadedModel:
        """What is made of an artifact that is none."""
        self.begun.set()
        if artifact_id in self.building:
            return self.building[artifact_id]()
        return self.models.setdefault(artifact_id, CountingModel())

    def _on_change(self, records: tuple[GenerationRecord, ...]) -> None:
        self.records = records
        self.history.append({record.artifact_id: record.state for record in records})
        self._moved.set()

    @contextlib.asynccontextmanager
    async def run(self, artifact: ArtifactId, request: TokenRequest) -> AsyncIterator[TokenStream]:
        """As a ticket for the artifact would have it."""
        with self.generations.borrow(artifact) as held:
            async with self.engine.run(held.lender, request) as stream:
                yield stream

    async def until(self, condition: Callable[[dict[ArtifactId, State]], bool]) -> None:
        """Returns when the records fulfil the condition."""
        async with asyncio.timeout(10):
            while not condition({record.artifact_id: record.state for record in self.records}):
                self._moved.clear()
                await self._moved.wait()

    async def target(
        self,
        artifact: ArtifactId | None,
        cohort: Cohort = STABLE,
        model: ModelName = MODEL,
        strategy: Strategy = AS_THE_ENGINE_HAS_IT,
    ) -> Revision:
        revision = Revision(next(self._revision))
        record = Target(revision=revision, artifact_id=artifact, who="test", why="", strategy=strategy)
        await self.store.put(keys.target(model, cohort), record.encode())
        return revision

    async def serve(self, artifact: ArtifactId | None, revision: Revision, cohort: Cohort = STABLE) -> None:
        record = Serving(revision=revision, artifact_id=artifact)
        await self.store.put(keys.serving(MODEL, cohort), record.encode())


@contextlib.asynccontextmanager
async def world(
    ticket_ttl_s: float = 0.02, serves: tuple[str, ...] = (), max_drain_s: float = 0
) -> AsyncIterator[World]:
    made = World(ticket_ttl_s, serves, max_drain_s)
    async with (
        made.engine,
        View(made.store, keys.TARGETS, Target) as targets,
        View(made.store, keys.SERVING, Serving) as serving,
        background(made.manager.follow(targets, serving)),
    ):
        yield made
