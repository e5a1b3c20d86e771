"""How many generations of a model@cohort are in memory at a time: the wait for a drain, and its end."""

from __future__ import annotations

from services.common.ids import ArtifactId
from services.common.registry.publish_records import Strategy
from services.common.registry.records import GenerationState as State
from tests.unit.engine.generation_world import CANARY, NEW, OLD, THIRD, World, world
from tests.unit.engine.generations_alone import TICKET_TTL_S, GenerationsAlone


async def test_a_third_generation_waits_for_a_drain_and_goes_on() -> None:
    """The loader is not asked for it while a request holds the first one, and its record says what it waits for.

    Fault injection: turns red when GenerationManager does not act on Proceed, or GenerationLoad asks for no place before
    it fetches.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        with it.generations.borrow(OLD):
            await it.serve(NEW, await it.target(NEW))
            await it.until(lambda states: states == {OLD: State.DRAINING, NEW: State.ACTIVE})
            await it.target(THIRD)
            await it.until(lambda states: states.get(THIRD) is State.ALLOCATING and waiting(it) == [THIRD])
            assert [OLD, NEW] == it.loader.asked
        await it.until(lambda states: states == {NEW: State.ACTIVE, THIRD: State.ACTIVE})


async def test_a_third_generation_does_not_wait_for_ever() -> None:
    """When its time is over it is FAILED, with what it waited for; the others stay as they are.

    Fault injection: turns red when `Generations.next_due_s` knows drains alone.
    """
    async with world() as it:
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        with it.generations.borrow(OLD):
            await it.serve(NEW, await it.target(NEW))
            await it.until(lambda states: states == {OLD: State.DRAINING, NEW: State.ACTIVE})
            await it.target(THIRD, strategy=Strategy(timeout_ms=50))
            await it.until(lambda states: states.get(THIRD) is State.FAILED)
            assert ["TIMEOUT"] == [r.failure.reason for r in it.records if r.failure]
            assert [THIRD] == waiting(it)


def test_what_stays_for_another_cohort_takes_no_place_in_this_one() -> None:
    """Beside a candidate that never served, there is room for the next.

    Fault injection: turns red when a pair stands for all that it ever named: the two would wait for each other.
    """
    it = GenerationsAlone()
    it.publish(OLD, CANARY)
    for artifact in (OLD, NEW):
        it.target(artifact)
        it.decide()
    it.bring_up(NEW)
    it.target(THIRD)
    it.bring_up(THIRD)
    assert {OLD: State.ACTIVE, NEW: State.DRAINING, THIRD: State.ACTIVE} == it.states


def test_what_gateways_have_left_makes_room() -> None:
    """Another engine was ready first: what this one held before, and a candidate, wait for nobody who waits for them.

    Fault injection: turns red when `_is_provided` does not ask whether gateways have gone on.
    """
    it = GenerationsAlone()
    it.publish(OLD)
    it.publish(OLD, CANARY)
    stable = it.target(THIRD)
    it.target(NEW, CANARY)
    it.bring_up(NEW)
    canary = it.target(THIRD, CANARY)
    it.serve(THIRD, stable)
    it.serve(THIRD, canary, CANARY)
    it.decide()
    assert {OLD: State.DRAINING, NEW: State.DRAINING, THIRD: State.FETCHING} == it.states
    it.now_s += TICKET_TTL_S
    it.bring_up(THIRD)
    assert {THIRD: State.ACTIVE} == it.states


def waiting(it: World) -> list[ArtifactId]:
    return [record.artifact_id for record in it.records if "waiting_for_drain" in record.error]
