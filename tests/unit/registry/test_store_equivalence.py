"""The store in memory and etcd cannot be told apart by any sequence of writes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire
from services.common.registry.memory import MemoryStore
from services.common.registry.store import Delete, Put, Store, Unchanged

if TYPE_CHECKING:
    from tests.unit.registry.conftest import EtcdServer

KEYS = st.sampled_from(["a", "a/b", "b"])
WRITES = st.one_of(st.builds(Put, KEYS, st.binary(max_size=3), st.none()), st.builds(Delete, KEYS))


class Commit(NamedTuple):
    """A commit whose conditions hold as things stand, except where `stale`."""

    conditions: list[str]
    stale: bool
    writes: list[Put | Delete]


COMMITS = st.builds(
    Commit,
    st.lists(KEYS, unique=True),
    st.booleans(),
    st.lists(WRITES, unique_by=lambda write: write.key),
)
_prefixes = itertools.count()


async def play(store: Store, commits: Sequence[Commit]) -> list[object]:
    """What a caller sees, with revisions counted from the beginning."""
    base = (await store.list("")).revision
    seen: list[object] = []
    for commit in commits:
        current = {entry.key: entry.mod_revision for entry in (await store.list("")).entries}
        conditions = [Unchanged(key, current.get(key, 0) + commit.stale) for key in commit.conditions]
        seen.append(await store.commit(conditions, commit.writes))
        listing = await store.list("")
        seen.append(listing.revision - base)
        seen.append([(entry.key, entry.value, entry.mod_revision - base) for entry in listing.entries])
    return seen


@settings(max_examples=40, deadline=None)
@given(commits=st.lists(COMMITS, max_size=8))
def test_memory_and_etcd_answer_alike(shared_etcd: EtcdServer, commits: list[Commit]) -> None:
    """Results, contents and revisions are the same after every step."""

    async def both() -> None:
        wire = EtcdWire(Access(endpoints=(shared_etcd.endpoint,)))
        try:
            etcd = EtcdStore(wire, f"equivalence{next(_prefixes)}/")
            assert await play(etcd, commits) == await play(MemoryStore(), commits)
        finally:
            await wire.close()

    asyncio.run(both())
