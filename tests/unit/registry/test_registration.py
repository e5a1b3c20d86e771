"""A process's own record: always there again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from services.common.errors import Overloaded
from services.common.ids import InstanceId, ProcessId
from services.common.registry import keys
from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.memory import MemoryStore
from services.common.registry.records import SchedulerRecord
from services.common.registry.registration import Registration
from services.common.registry.store import Changes, Delete, Put, Snapshot, Store, Unchanged
from services.common.registry.view import View

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer

KEY = keys.scheduler(ProcessId("s"))


def record(term: int) -> SchedulerRecord:
    return SchedulerRecord(
        id=ProcessId("s"), instance_id=InstanceId("i"), address="h:1", host="h", start_time="t", term=term
    )


def registration(store: Store, ttl_s: int = 5) -> Registration[SchedulerRecord]:
    return Registration(store, KEY, ttl_s, record(1))


async def until(view: View[SchedulerRecord], term: int) -> None:
    """Returns when the registered term is `term`."""
    async with contextlib.aclosing(view.changes()) as changes:
        async for _ in changes:
            if KEY in view.records and view.records[KEY].term == term:
                return


async def test_the_record_stands_while_its_scope_lasts(store: Store) -> None:
    """It comes with the scope and goes with it."""
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view:
        async with registration(store):
            await until(view, 1)
        assert await store.get(KEY) is None


async def test_an_update_is_written(store: Store) -> None:
    """The latest update is what others read."""
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store) as mine:
        await until(view, 1)
        for term in range(2, 6):
            mine.update(record(term))
        assert record(5) == mine.record
        await until(view, 5)


async def test_the_record_comes_back_after_its_lease_was_lost() -> None:
    """A lost lease is taken anew, with the latest record."""
    store = MemoryStore()
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store) as mine:
        await until(view, 1)
        for lease in list(store._leases):
            store.expire(lease)
        mine.update(record(2))
        await until(view, 2)


async def test_a_registration_begun_in_an_outage_is_made_after_it() -> None:
    """Entering does not wait for the registry, and the record is written once it answers."""
    store = MemoryStore()
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view:
        with store.outage():
            scope = contextlib.AsyncExitStack()
            mine = await scope.enter_async_context(registration(store))
        async with scope:
            mine.update(record(2))
            await until(view, 2)


async def until_standing(store: Store, expected: SchedulerRecord) -> None:
    """Returns when that is what the registry has."""
    async with asyncio.timeout(30), contextlib.aclosing(store.watch(KEY)) as messages:
        async for _ in messages:
            entry = await store.get(KEY)
            if entry and entry.value == expected.encode():
                return


async def test_the_record_is_written_anew_where_the_registry_has_gone_back_behind_it() -> None:
    """A gap in its history may be a backup: what it has of this process is compared.

    Fault injection: turns red when `_look_after` compares nothing.
    """
    store = MemoryStore()
    async with registration(store) as mine:
        mine.update(record(2))
        await until_standing(store, record(2))
        await store.put(KEY, record(1).encode(), next(iter(store._leases)))
        store.compact()
        await until_standing(store, record(2))


async def test_a_successor_of_the_same_name_is_left_its_record() -> None:
    """Whoever has the key by then is told by it alone, also after a gap.

    Fault injection: turns red when `_compare` minds no other instance.
    """
    store = MemoryStore()
    successor = record(7).model_copy(update={"instance_id": InstanceId("j")})
    async with registration(store):
        await until_standing(store, record(1))
        await store.put(KEY, successor.encode())
        store.compact()
        await until_standing(store, successor)
        for _ in range(100):
            await asyncio.sleep(0)
        await until_standing(store, successor)


async def test_two_processes_of_one_name_say_so_once() -> None:
    """Each hears of the other, who lives; what a predecessor has left behind is nothing to tell of.

    Fault injection: turns red when `_look_for_others` is never asked, or tells every time.
    """
    store = MemoryStore()
    one, two = (record(1).model_copy(update={"instance_id": InstanceId(name)}) for name in ("one", "two"))
    await store.put(KEY, record(9).encode())
    with capture_logs() as logs:
        async with Registration(store, KEY, 5, one) as first:
            await until_standing(store, one)
            async with Registration(store, KEY, 5, two) as second:
                await until_standing(store, two)
                for term in range(2, 5):
                    for mine in (first, second):
                        mine.update(mine.record.model_copy(update={"term": term}))
                        await until_standing(store, mine.record)
    assert ["registry_name_taken"] * 2 == [entry["event"] for entry in logs]


class FullStore(MemoryStore):
    """Takes no writes while it is full, as etcd beyond its quota; leases and reading go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.refused = asyncio.Event()

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        if self.is_full:
            self.refused.set()
            raise Overloaded("no space", reason="REGISTRY_FULL", retry_after_s=10.0)
        return await super().commit(conditions, writes)


async def test_a_full_registry_keeps_what_was_registered() -> None:
    """What is new is written once there is room.

    Fault injection: turns red when `Registration._write` minds nothing but a registry that is away.
    """
    store = FullStore()
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store) as mine:
        await until(view, 1)
        store.is_full = True
        mine.update(record(2))
        async with asyncio.timeout(30):
            for _ in range(2):
                store.refused.clear()
                await store.refused.wait()
        assert 1 == view.records[KEY].term
        assert 1 == len(store._leases)
        store.is_full = False
        await until(view, 2)


async def test_a_key_deleted_by_another_instance_is_not_ours_to_delete(store: Store) -> None:
    """When a successor of the same name has taken the key over, our end leaves its record alone."""
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store) as successor:
        await until(view, 1)
        async with Registration(store, KEY, 5, record(3)):
            await until(view, 3)
            successor.update(record(4))
            await until(view, 4)
        assert await store.get(KEY) is not None


async def test_an_error_of_the_body_passes_as_it_is() -> None:
    """What the body raises is not wrapped."""
    with pytest.raises(KeyError):
        async with registration(MemoryStore()):
            raise KeyError("mine")


async def test_the_record_comes_back_after_etcd_lost_its_lease(own_etcd: EtcdServer) -> None:
    """etcd is killed, and the lease revoked by an operator after its restart: the record returns."""
    wire = EtcdWire(Access(endpoints=(own_etcd.endpoint,)))
    store = EtcdStore(wire, "halogen/")
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store, ttl_s=2) as mine:
        await until(view, 1)
        own_etcd.kill()
        own_etcd.start()
        lease = own_etcd.control("lease", "list").split()[-1]
        own_etcd.control("lease", "revoke", lease)
        mine.update(record(2))
        await until(view, 2)
    await wire.close()


class HeardStore(EtcdStore):
    """Knows which values its watches have told of."""

    def __init__(self, wire: EtcdWire) -> None:
        super().__init__(wire, "halogen/")
        self.heard: asyncio.Queue[bytes | None] = asyncio.Queue(100)

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
        async with contextlib.aclosing(super().watch(prefix)) as messages:
            async for message in messages:
                told = message.entries if isinstance(message, Snapshot) else message.changes
                for _, value, _ in told:
                    self.heard.put_nowait(value)
                yield message


async def test_the_record_comes_back_to_an_etcd_that_is_restored_from_a_backup(
    own_etcd: EtcdServer, tmp_path: Path
) -> None:
    """The lease is in the backup and goes on; what the record said since, and was heard to say, is not.

    Fault injection: turns red when `_look_after` compares nothing.
    """
    wire = EtcdWire(Access(endpoints=(own_etcd.endpoint,)))
    store, own = EtcdStore(wire, "halogen/"), HeardStore(wire)
    async with registration(own, ttl_s=60) as mine:
        await until_standing(store, record(1))
        own_etcd.control("snapshot", "save", str(tmp_path / "backup"))
        mine.update(record(2))
        while await own.heard.get() != record(2).encode():
            pass
        own_etcd.kill()
        own_etcd.restore(tmp_path / "backup")
        own_etcd.start()
        await until_standing(store, record(2))
    await wire.close()


async def test_the_end_does_not_hang_when_etcd_is_gone(own_etcd: EtcdServer) -> None:
    """Without etcd the scope still ends; the lease will end by itself."""
    wire = EtcdWire(Access(endpoints=(own_etcd.endpoint,)))
    store = EtcdStore(wire, "halogen/")
    async with View(store, keys.SCHEDULERS, SchedulerRecord) as view, registration(store):
        await until(view, 1)
        own_etcd.kill()
    await wire.close()
