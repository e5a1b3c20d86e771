"""Requests borrow generations at the same price however many there have been."""

from __future__ import annotations

import gc
import weakref
from typing import Final

from services.common.ids import ArtifactId
from tests.unit.engine.generations_alone import TICKET_TTL_S, GenerationsAlone

SWAPS: Final = 500


def test_r_a9_five_hundred_swaps_leave_nothing_behind() -> None:
    """What a request looks its generation up in has as many entries after the last swap as after the first.

    Fault injection: turns red when `_let_go` does not call `Assignments.forget`, or leaves `_held` as it is.
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


def _entries(it: GenerationsAlone) -> int:
    """How many there are in all dictionaries that generations and those who decide for them keep, and in those in them."""
    parts = (it.generations, it.generations._assignments, it.generations._succession)
    kept = [each for part in parts for each in vars(part).values()]
    tables = [each for each in kept if isinstance(each, dict)]
    inner = [each for table in tables for each in table.values() if isinstance(each, dict)]
    return sum(len(table) for table in tables + inner)
