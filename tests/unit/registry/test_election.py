"""One leads, the others wait; nobody leads twice in one term."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from services.common.errors import Unavailable
from services.common.ids import InstanceId, ProcessId
from services.common.pulse import Pulse
from services.common.registry import keys
from services.common.registry.election import Election
from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.leader_records import LastTerm, LeaderRecord
from services.common.registry.memory import MemoryStore
from services.common.registry.store import Ambiguous, Store

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer

PATIENCE_S = 30


class Candidate:
    """Stands for election, and remembers what it was told."""

    def __init__(self, store: Store, name: str, *, start: int = 1, ttl_s: int = 5) -> None:
        self.name = ProcessId(name)
        self.told: list[int | None] = []
        self._pulse = Pulse()
        record = LeaderRecord(
            id=self.name, instance_id=InstanceId(f"{name}-{start}"), address=f"{name}:1", term=0
        )
        self.election = Election(store, record, ttl_s, self._hear)

    def _hear(self, term: int | None) -> None:
        assert term == self.election.term
        self.told.append(term)
        self._pulse.beat()

    async def until(self, told: Callable[[list[int | None]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(self._pulse.beats()) as beats:
            while not told(self.told):
                await anext(beats)

    async def leads(self, term: int) -> None:
        await self.until(lambda told: told[-1:] == [term])

    async def ceases(self) -> None:
        await self.until(lambda told: told[-1:] == [None])


async def leader(store: Store) -> LeaderRecord | None:
    entry = await store.get(keys.SCHEDULER_LEADER)
    return LeaderRecord.decode(entry.value) if entry else None


@contextlib.asynccontextmanager
async def standing(*candidates: Candidate) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as scope:
        for candidate in candidates:
            await scope.enter_async_context(candidate.election)
        yield


async def first_to_lead(*candidates: Candidate) -> tuple[Candidate, Candidate]:
    """Whoever of two leads in term 1, and the other."""
    waits = {asyncio.ensure_future(each.leads(1)): each for each in candidates}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    won = waits[done.pop()]
    return won, next(each for each in candidates if each is not won)


async def test_one_of_several_leads(store: Store) -> None:
    """Exactly one is told to lead, and the registry names it."""
    candidates = Candidate(store, "a"), Candidate(store, "b")
    async with standing(*candidates):
        won, other = await first_to_lead(*candidates)
        record = await leader(store)
        assert record is not None
        assert (won.name, f"{won.name}:1", 1) == (record.id, record.address, record.term)
        assert ([1], []) == (won.told, other.told)


async def test_who_resigns_is_followed_at_once_in_a_higher_term(store: Store) -> None:
    """Leaving the scope gives up the key, and the next takes over well before any lease could end.

    Fault injection: without the revocation of the lease in EtcdStore.lease, the next one waits for its end.
    """
    second = Candidate(store, "b", ttl_s=300)
    first = Candidate(store, "a", ttl_s=300)
    async with contextlib.AsyncExitStack() as scope:
        async with standing(first):
            await first.leads(1)
            await scope.enter_async_context(second.election)
        await second.leads(2)
        assert [1, None] == first.told
    assert await leader(store) is None


async def test_terms_rise_although_nobody_is_left(store: Store) -> None:
    """The last term outlives the leaders: a later one begins above it."""
    for term in (1, 2, 3):
        candidate = Candidate(store, "a")
        async with standing(candidate):
            await candidate.leads(term)


async def test_a_restart_takes_over_from_its_predecessor_at_once(store: Store) -> None:
    """A process killed without a word leaves its record; its next start need not wait for the lease."""
    dead = Candidate(store, "a", ttl_s=300)
    async with standing(dead):
        await dead.leads(1)
        again = Candidate(store, "a", start=2)
        async with standing(again):
            await again.leads(2)
            await dead.ceases()


async def test_two_of_one_name_do_not_fight(store: Store) -> None:
    """Only what a candidate found at its start counts as its predecessor: who was replaced waits."""
    first, second = Candidate(store, "a"), Candidate(store, "a", start=2)
    async with standing(first):
        await first.leads(1)
        async with standing(second):
            await second.leads(2)
            await first.ceases()
            await store.put("leader/other", b"{}")  # news that wakes everybody
            assert [2] == second.told
        await first.leads(3)


async def test_a_leader_leads_on_while_the_registry_is_away() -> None:
    """A lost lease alone ends no leadership; the post is taken anew afterwards, in a higher term.

    Fault injection: with `self._cease("")` at the end of Election._tell_when_lost, None is told in between.
    """
    store = MemoryStore()
    candidate = Candidate(store, "a")
    async with standing(candidate):
        await candidate.leads(1)
        with store.outage():
            for lease in list(store._leases):
                store.expire(lease)
            assert 1 == candidate.election.term
        await candidate.leads(2)
        assert [1, 2] == candidate.told


async def test_a_leader_steps_down_when_it_sees_another() -> None:
    """Its lease ends unheard, another takes the post: the first is told None and waits again."""
    store = MemoryStore()
    first, second = Candidate(store, "a"), Candidate(store, "b")
    async with standing(first):
        await first.leads(1)
        record = LeaderRecord(id=second.name, instance_id=InstanceId("b-1"), address="b:1", term=2)
        await store.put(keys.SCHEDULER_TERM, LastTerm(term=2).encode())
        await store.put(keys.SCHEDULER_LEADER, record.encode())
        await first.ceases()
        await store.delete(keys.SCHEDULER_LEADER)
        await first.leads(3)


async def test_a_record_that_was_taken_away_is_written_anew() -> None:
    """An operator's mistake leaves nobody without a leader."""
    store = MemoryStore()
    candidate = Candidate(store, "a")
    async with standing(candidate):
        await candidate.leads(1)
        await store.delete(keys.SCHEDULER_LEADER)
        await candidate.leads(2)
        assert [1, 2] == candidate.told


def record_of(name: str, term: int) -> LeaderRecord:
    return LeaderRecord(
        id=ProcessId(name), instance_id=InstanceId(f"{name}-1"), address=f"{name}:1", term=term
    )


# Turns red when: Election._observe remembers no terms.
async def test_terms_rise_although_the_registry_has_lost_them() -> None:
    """Who stood by knows in which term the last one led: engines take no tickets of an older one."""
    store = MemoryStore()
    await store.put(keys.SCHEDULER_LEADER, record_of("b", 7).encode())
    async with standing(candidate := Candidate(store, "a")):
        while candidate.election._highest < 7:  # noqa: ASYNC110  # nobody is told of that
            await asyncio.sleep(0)
        await store.delete(keys.SCHEDULER_LEADER)
        await candidate.leads(8)


# Turns red when: Election._is_free does not look at terms that are over.
async def test_a_leader_takes_its_post_back_from_one_who_knows_no_terms() -> None:
    """A newcomer found an empty registry, and leads in the first term: no engine takes its tickets."""
    store = MemoryStore()
    await store.put(keys.SCHEDULER_TERM, LastTerm(term=6).encode())
    async with standing(candidate := Candidate(store, "a")):
        await candidate.leads(7)
        for lease in list(store._leases):
            store.expire(lease)
        await store.put(keys.SCHEDULER_TERM, LastTerm(term=1).encode())
        await store.put(keys.SCHEDULER_LEADER, record_of("b", 1).encode())
        await candidate.leads(8)


async def test_a_record_that_nobody_can_read_is_replaced(store: Store) -> None:
    """It does not block the post for ever."""
    await store.put(keys.SCHEDULER_LEADER, b"not a record")
    candidate = Candidate(store, "a")
    async with standing(candidate):
        await candidate.leads(1)


class Doubtful(MemoryStore):
    """Loses the answer to the next commit, once it is applied or instead of it."""

    def __init__(self, *, applies: bool) -> None:
        super().__init__()
        self.applies = applies
        self.losses = 1

    async def commit(self, *arguments: object) -> bool:
        if not self.losses or len(arguments[0]) == 0:  # type: ignore[arg-type]
            return await super().commit(*arguments)  # type: ignore[arg-type]
        self.losses -= 1
        if self.applies:
            await super().commit(*arguments)  # type: ignore[arg-type]
        raise Ambiguous("lost")


@pytest.mark.parametrize("applies", [True, False])
async def test_a_lost_answer_is_read_back(applies: bool) -> None:
    """Whether the commit was applied or not, the candidate leads in the term that the registry shows."""
    store = Doubtful(applies=applies)
    candidate = Candidate(store, "a")
    async with standing(candidate):
        await candidate.leads(1)
        record = await leader(store)
        assert record is not None
        assert 1 == record.term


async def test_a_candidate_waits_for_a_registry_that_is_away() -> None:
    """It enters at once, and stands once the registry answers."""
    store = MemoryStore()
    candidate = Candidate(store, "a")
    async with contextlib.AsyncExitStack() as scope:
        with store.outage():
            await scope.enter_async_context(candidate.election)
            with pytest.raises(Unavailable):
                await store.get(keys.SCHEDULER_LEADER)
        await candidate.leads(1)


async def test_a_leader_survives_a_restart_of_etcd(own_etcd: EtcdServer) -> None:
    """etcd is killed for longer than the lease lasts: the leader never ceases, and takes its post anew."""
    wire = EtcdWire(Access(endpoints=(own_etcd.endpoint,)))
    store = EtcdStore(wire, "halogen/")
    candidate = Candidate(store, "a", ttl_s=2)
    async with standing(candidate):
        await candidate.leads(1)
        own_etcd.kill()
        with pytest.raises(Unavailable):
            await store.get(keys.SCHEDULER_LEADER)
        own_etcd.start()
        await candidate.leads(2)
        assert [1, 2] == candidate.told
    await wire.close()
