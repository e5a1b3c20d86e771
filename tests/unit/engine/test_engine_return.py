"""An engine goes back to what is served when a publish has failed, whatever it made of it itself."""

from __future__ import annotations

from services.common.errors import CorruptData
from services.common.registry import keys
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Target
from tests.unit.engine.generation_world import MODEL, NEW, OLD, STABLE, THIRD, World, world

FAILURE = Failure(stage=Stage.COMMIT, reason="WAITED_FOR", message="waited for engine-2")


async def fail(made: World) -> None:
    """What the leading scheduler says of the target that stands."""
    key = keys.target(MODEL, STABLE)
    entry = await made.store.get(key)
    assert entry is not None
    failed = Target.decode(entry.value).model_copy(update={"failure": FAILURE})
    await made.store.put(key, failed.encode())


async def test_what_was_switched_to_is_left_again() -> None:
    """The candidate drains although nothing newer is named; what is served was ACTIVE all along.

    Fault injection: turns red when `Assignments.wanted` counts targets that have failed.
    """
    async with world() as made:
        await made.serve(OLD, await made.target(OLD))
        await made.until(lambda states: states == {OLD: State.ACTIVE})
        await made.target(NEW)
        await made.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.ACTIVE})
        began = len(made.history)
        await fail(made)
        await made.until(lambda states: states == {OLD: State.ACTIVE})
        assert {State.ACTIVE} == {states[OLD] for states in made.history[began:]}


async def test_a_first_publish_that_failed_leaves_nothing_and_the_next_one_is_loaded() -> None:
    """The same artifact under a newer revision is another try."""
    async with world() as made:
        await made.target(NEW)
        await made.until(lambda states: states == {NEW: State.ACTIVE})
        await fail(made)
        await made.until(lambda states: states == {})
        await made.target(NEW)
        await made.until(lambda states: states == {NEW: State.ACTIVE})


async def test_what_came_between_goes_too() -> None:
    """A candidate that was never served waits for its successor to be here; one that failed is none.

    Fault injection: turns red when `Assignments._is_provided` looks at the target alone, failed or not.
    """
    async with world() as made:
        await made.serve(OLD, await made.target(OLD))
        await made.target(NEW)
        await made.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.ACTIVE})
        made.loader.failures[THIRD] = [CorruptData("it is torn")]
        await made.target(THIRD)
        await made.until(lambda states: states.get(THIRD) is State.FAILED)
        await fail(made)
        await made.until(lambda states: states == {OLD: State.ACTIVE})
