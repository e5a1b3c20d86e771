"""How a real system comes to rest once it is left in peace, and what must hold then of all that went before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from services.common.errors import DeadlinePassed
from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord
from services.common.registry.records import EngineRecord, GatewayRecord, GenerationState, Serving
from tests.e2e.streams import Stream, is_whole
from tests.e2e.swap_world import SwapWorld
from tests.simulation.swap_invariants import Broken, hold

REST_S: Final = 90.0


async def come_to_rest(world: SwapWorld) -> None:
    """Ends all faults; returns once every publish has ended and everybody has, and answers from, what is served.

    Raises:
        Broken: It takes too long.
    """
    world.thaw()
    began_s = time.monotonic()
    await world.orders_heard()
    await _until(world, "I11", lambda: not world.pending, lambda: world.pending)
    served = _served(world)
    await _until(world, "I12", lambda: _all_hold(world, served), lambda: _held(world))
    try:
        await world.running.until(lambda streams: _is_calm(world, streams, served, began_s), REST_S)
    except TimeoutError:
        raise Broken("I12", (served, _mapped(world))) from None


def check_rest(world: SwapWorld) -> None:
    """Raises Broken, or AssertionError, where what came before, or what is left of it, is not as it should be."""
    for stream in world.running.streams:
        _check_answer(world, stream)
        hold("I2", stream.revision is None or stream.revision >= _seen_before(world, stream), stream)
    unfinished = list(world.weights.glob("*.writing"))
    hold("I12", not unfinished, unfinished)
    deaths = [world.system.deaths.get_nowait() for _ in range(world.system.deaths.qsize())]
    killed = {f"{name} ended with status -9" for name, _ in world.killed_s}
    assert {line.partition(";")[0] for line in deaths} <= killed, "nothing dies but what is killed"


async def _until(
    world: SwapWorld, invariant: str, condition: Callable[[], bool], seen: Callable[[], object]
) -> None:
    try:
        await world.observer.until(condition, REST_S)
    except TimeoutError:
        raise Broken(invariant, seen()) from None


def _served(world: SwapWorld) -> ArtifactId:
    """What the greatest revision names that was committed."""
    commits = world.observer.records(keys.COMMITS, CommitRecord)
    last = max(commits)  # keys are in the order of revisions
    [serving] = world.observer.records(keys.SERVING, Serving).values()
    committed = (keys.split_revision_key(last)[1], commits[last].artifact_id)
    hold("I4", (serving.revision, serving.artifact_id) == committed, (serving, committed))
    return commits[last].artifact_id


def _held(world: SwapWorld) -> dict[str, dict[ArtifactId, GenerationState]]:
    """What engines say that they have."""
    engines = world.observer.records(keys.ENGINES, EngineRecord).values()
    return {engine.id: {each.artifact_id: each.state for each in engine.generations} for engine in engines}


def _all_hold(world: SwapWorld, served: ArtifactId) -> bool:
    engines = {member.id for member in world.system.of("engine")}
    gateways = world.observer.records(keys.GATEWAYS, GatewayRecord).values()
    ready = {gateway.id for gateway in gateways if served in gateway.artifact_ids}
    return (
        _held(world) == {each: {served: GenerationState.ACTIVE} for each in engines}
        and {member.id for member in world.system.of("gateway")} == ready
    )


def _mapped(world: SwapWorld) -> dict[str, set[ArtifactId]]:
    return {engine.id: world.mapped(engine) for engine in world.system.of("engine")}


def _is_calm(world: SwapWorld, streams: list[Stream], served: ArtifactId, since_s: float) -> bool:
    """Whether everybody has answered from what is served, since then, and nothing else is in an engine's memory."""
    fresh = (each for each in streams if each.began_s > since_s and each.artifact_ids == {served})
    return is_whole(world.system, fresh) and all(each == {served} for each in _mapped(world).values())


def _check_answer(world: SwapWorld, stream: Stream) -> None:
    """It is that of one artifact's pure run, whole; or it ends in a status, if a process had been killed just then."""
    if stream.token_ids:
        hold("I7", len(stream.artifact_ids) == 1, stream)
        [artifact_id] = stream.artifact_ids
        hold("I7", stream.is_right(world.pure[artifact_id]), stream)
    if stream.error is not None:
        is_excused = any(_was_amid(world, stream, killed_s) for _, killed_s in world.killed_s)
        hold("I8", is_excused and not isinstance(stream.error, DeadlinePassed), stream)


def _was_amid(world: SwapWorld, stream: Stream, killed_s: float) -> bool:
    """Whether it was under way between a process's death and the moment when everybody had answered anew."""
    assert stream.ended_s is not None
    since = (
        each
        for each in world.running.streams
        if each.began_s > killed_s and each.ended_s and each.ended_s < stream.began_s
    )
    return stream.ended_s > killed_s and not is_whole(world.system, since)


def _seen_before(world: SwapWorld, stream: Stream) -> int:
    """The latest revision that its gateway had served from when it began."""
    before = (
        each.revision or 0
        for each in world.running.streams
        if each.gateway_id == stream.gateway_id and each.ended_s and each.ended_s < stream.began_s
    )
    return max(before, default=0)
