"""The record of what an engine's build makes of an artifact: written once it is ACTIVE, whatever the registry does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.common.background import background
from services.common.checkpoint.graph_hash import Build, Built, GraphHash
from services.common.errors import Overloaded
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.qualification_records import QualificationRecord, Statement
from services.common.registry.store import Delete, Put, Unchanged
from services.common.registry.view import View
from services.engine.qualifier import WARM_UP, Qualifier
from tests.unit.engine.fakes import CountingModel, generation

BUILT = Built(
    GraphHash("1" * 64, "2" * 64, "3" * 64),
    Build(kernels={"name": "portable", "dtype": "float32"}, device={"class": "cpu", "torch": "2.13"}),
)
KEY = keys.qualification(generation(CountingModel()).artifact_id, BUILT.root)


class BuiltModel(CountingModel):
    built: Built | None = BUILT


class WatchedStore(MemoryStore):
    """Tells when somebody tries to write."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = asyncio.Event()

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        self.tried.set()
        return await super().commit(conditions, writes)


class FullStore(WatchedStore):
    """Takes no writes, as etcd beyond its quota."""

    is_full = True

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if self.is_full:
            self.tried.set()
            raise Overloaded("no space", reason="REGISTRY_FULL", retry_after_s=10.0)
        return await super().commit(conditions, writes)


async def written(store: MemoryStore) -> QualificationRecord:
    """The record, once it is there."""
    async with View(store, keys.QUALIFICATIONS, QualificationRecord) as view:
        async for _ in view.changes():
            if KEY in view.records:
                return view.records[KEY]
    raise AssertionError


async def test_an_active_generation_is_put_on_record() -> None:
    """Parts 4 and 5 with their factors, under the build's root."""
    store, qualifier = MemoryStore(), Qualifier("halogen/0.1.0 cpu portable")
    async with background(qualifier.follow(store)):
        qualifier.note(generation(BuiltModel()))
        record = await written(store)
    assert (BUILT.graph.root, BUILT.build.kernels, BUILT.build.device, (WARM_UP,)) == (
        record.graph_root,
        record.kernels,
        record.device,
        record.probes,
    )


async def test_what_is_on_record_already_stays() -> None:
    """Also after a restart. Turns red when: Qualifier._write_all puts without its condition."""
    store, qualifier = MemoryStore(), Qualifier("new")
    approval = Statement(time="2026-01-01T00:00:00Z", who="ada", why="good", approved=True)
    old = QualificationRecord(
        runtime_build="old", graph_root="f" * 64, kernels={}, device={}, statements=(approval,)
    )
    await store.put(KEY, old.encode())
    qualifier.note(generation(BuiltModel()))
    await qualifier._write_all(store)
    assert old == await written(store)


async def test_an_outage_only_delays_the_record() -> None:
    """It is written when the registry is back."""
    store, qualifier = WatchedStore(), Qualifier("halogen/0.1.0 cpu portable")
    async with background(qualifier.follow(store)):
        with store.outage():
            qualifier.note(generation(BuiltModel()))
            await store.tried.wait()
        assert "halogen/0.1.0 cpu portable" == (await written(store)).runtime_build


async def test_a_full_registry_only_delays_the_record() -> None:
    """Fault injection: turns red when `Qualifier.follow` minds nothing but a registry that is away."""
    store, qualifier = FullStore(), Qualifier("halogen/0.1.0 cpu portable")
    async with background(qualifier.follow(store)):
        qualifier.note(generation(BuiltModel()))
        await store.tried.wait()
        store.is_full = False
        assert "halogen/0.1.0 cpu portable" == (await written(store)).runtime_build


def test_a_model_without_a_graph_leaves_no_record() -> None:
    """A stand-in has nothing to say."""
    qualifier = Qualifier("x")
    qualifier.note(generation(CountingModel()))
    assert {} == qualifier._waiting
