"""Requests borrow generations at the same price however many there have been."""

from __future__ import annotations

import gc
import weakref
from typing import Final

import pytest

from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.common.registry.publish_records import Strategy, SwapMode
from services.common.registry.records import GenerationState as State
from tests.unit.engine.generation_world import NEW, OLD, world
from tests.unit.engine.generations_alone import TICKET_TTL_S, GenerationsAlone

SWAPS: Final = 500


def test_r_a9_five_hundred_swaps_leave_nothing_behind() -> None:
    """What a request looks its generation up in has as many entries after the last swap as after the first.

    Fault injection: turns red when `decide` does not call `Assignments.forget_all_but`, or `_let_go` leaves `_held` as
    it is.
    """
    it = GenerationsAlone()
    entries, made = [], []
    for number in range(SWAPS):
        made.append(weakref.ref(it.publish(ArtifactId(f"{number:064x}"))))
        it.now_s += TICKET_TTL_S
        it.decide()
        it.decide()
        it.disposed.clear()
        it.proceeding.clear()
        entries.append(_entries(it))
    assert {entries[0]} == set(entries)
    gc.collect()
    assert [f"{SWAPS - 1:064x}"] == [alive.artifact_id for alive in (each() for each in made) if alive]


ATOMIC, DRAINING = (Strategy(mode=mode) for mode in SwapMode)


@pytest.mark.parametrize("strategy", [ATOMIC, DRAINING])
def test_r_a9_what_fails_leaves_nothing_behind(strategy: Strategy) -> None:
    """Every other publish fails here, and the leader says so: as many entries after the last one as after the first.

    Fault injection: turns red when `_let_go` forgets what it drops, and nobody what is heard of that again: a target that
    has failed, or what is served and was let go for another.
    """
    it = GenerationsAlone()
    entries = []
    for number in range(0, SWAPS, 2):
        failing, coming = (ArtifactId(f"{each:064x}") for each in (number, number + 1))
        it.target(failing, strategy=strategy)
        it.settle()
        assert it.generations.failed(it.make(failing), CorruptData("torn"))
        it.stop(failing)
        it.fail()
        it.settle()
        for let_go in tuple(it.loads):
            it.bring_up(let_go)
        revision = it.target(coming, strategy=strategy)
        it.bring_up(coming)
        it.serve(coming, revision)
        it.settle()
        it.now_s += TICKET_TTL_S
        it.settle()
        it.disposed.clear()
        it.proceeding.clear()
        entries.append(_entries(it))
    assert {entries[0]} == set(entries)


async def test_r_a9_what_was_expected_of_an_artifact_goes_with_it() -> None:
    """The books have entries for what is here alone, also of what has answered often enough to expect something.

    Fault injection: turns red when Lending.forget leaves the expectation.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        it.engine.occupancy.expect(OLD, 7)
        await it.serve(NEW, await it.target(NEW))
        await it.until(lambda states: states == {NEW: State.ACTIVE})
        await it.manager.disposal.settled()
        assert {} == it.engine.occupancy._expected


def _entries(it: GenerationsAlone) -> int:
    """How many there are in all dictionaries that generations and those who decide for them keep, and in those in them."""
    parts = (it.generations, it.generations._assignments, it.generations._succession)
    kept = [each for part in parts for each in vars(part).values()]
    tables = [each for each in kept if isinstance(each, dict)]
    inner = [each for table in tables for each in table.values() if isinstance(each, dict)]
    return sum(len(table) for table in tables + inner)
