"""The feed of tickets and generations: a snapshot, then deltas that add up to it."""

from __future__ import annotations

import contextlib

import pytest

from services.common.ids import ArtifactId, TicketId
from services.common.registry.records import GenerationState
from services.engine import occupancy
from services.engine.occupancy import Delta, LiveTicket, Occupancy, ResidentGeneration, Snapshot


def ticket(name: str, *, prefill_started: bool = False) -> LiveTicket:
    return LiveTicket(id=TicketId(name), reserved_bytes=64, prompt_tokens=3, prefill_started=prefill_started)


GENERATION = ResidentGeneration(
    artifact_id=ArtifactId("a" * 64), state=GenerationState.ACTIVE, block_bytes=64, max_context_tokens=128
)


async def test_a_watcher_gets_a_snapshot_and_then_changes_that_waited_as_one() -> None:
    """Opening and closing between two looks leaves the closing only; generations come whole."""
    books = Occupancy()
    books.open(ticket("old"))
    async with contextlib.aclosing(books.watch()) as watch:
        assert Snapshot((ticket("old"),), (), 0) == await anext(watch)
        books.open(ticket("a"))
        books.open(ticket("b"))
        books.start_prefill(TicketId("b"))
        books.close(TicketId("a"))
        books.set_generations((GENERATION,))
        changes = Delta((ticket("b", prefill_started=True),), (TicketId("a"),), (GENERATION,))
        assert changes == await anext(watch)
        books.set_generations((GENERATION,))  # no change
        books.close(TicketId("b"))
        assert Delta((), (TicketId("b"),), None) == await anext(watch)


async def test_a_watcher_hears_of_another_size_of_the_arena() -> None:
    """Once, beside what else has changed; not when it stays as it is.

    Fault injection: turns red when Occupancy.resize tells nobody.
    """
    books = Occupancy()
    books.resize(640)
    async with contextlib.aclosing(books.watch()) as watch:
        assert Snapshot((), (), 640) == await anext(watch)
        books.resize(640)
        books.open(ticket("a"))
        assert Delta((ticket("a"),), (), None) == await anext(watch)
        books.resize(1280)
        books.close(TicketId("a"))
        assert Delta((), (TicketId("a"),), None, 1280) == await anext(watch)


async def test_a_watcher_that_falls_far_behind_gets_a_fresh_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is bounded."""
    monkeypatch.setattr(occupancy, "MAX_PENDING", 5)
    books = Occupancy()
    async with contextlib.aclosing(books.watch()) as watch:
        await anext(watch)
        for i in range(20):
            books.open(ticket(str(i)))
        assert Snapshot(tuple(ticket(str(i)) for i in range(20)), (), 0) == await anext(watch)


async def test_a_watcher_that_leaves_is_forgotten() -> None:
    """Closing the feed leaves nobody to tell."""
    books = Occupancy()
    async with contextlib.aclosing(books.watch()) as watch:
        await anext(watch)
    assert set() == books._watchers
