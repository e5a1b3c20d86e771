"""How the simulation comes to rest once faults have stopped, and what must hold then."""

from __future__ import annotations

from typing import Final

from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord, PublishState
from services.common.registry.records import GenerationState as State
from services.common.registry.records import Serving
from tests.simulation.sim_engine import LOAD_TIMEOUT_S, SimEngine
from tests.simulation.swap_invariants import hold
from tests.simulation.world import World

_MOST_ROUNDS: Final = 60
_OF_CONTENT: Final = "CORRUPT_DATA"  # of a torn artifact


def come_to_rest(world: World) -> None:
    """Everybody does what there is to do until nothing changes, also with time; no fault comes any more."""
    world.registry.is_away, world.registry.cut = False, ""
    world.restart()
    for engine in world.live_engines:
        engine.is_short = False
    for stream in world.streams:
        stream.end()
    world.streams.clear()
    while world.orphans:
        world.registry.expire(world.orphans.pop())
    for _ in range(_MOST_ROUNDS):
        before = _shown(world)
        _go_round(world)
        if before == _shown(world):
            break
    else:
        hold("I11", holds=False, seen="it never comes to rest")


def check_rest(world: World) -> None:
    """Raises Broken where what is at rest is not as it should be."""
    open_keys = [
        key
        for key, entry in world.registry.entries.items()
        if key.startswith(keys.INTENTS) and IntentRecord.decode(entry.value).state is PublishState.PENDING
    ]
    hold("I11", not open_keys, open_keys)
    served = {
        Serving.decode(entry.value).artifact_id
        for key, entry in world.registry.entries.items()
        if key.startswith(keys.SERVING)
    } - {None}
    for engine in world.live_engines:
        _check_engine(engine, {each for each in served if each})
    for gateway in world.live_gateways:
        named = {route.artifact_id for route in gateway.routes.served()}
        hold("I12", named == served <= gateway.texts, (gateway.id, named, served, gateway.texts))


def _check_engine(engine: SimEngine, served: set[ArtifactId]) -> None:
    """It has what is served; one that failed at that by a fault of the schedule's may have what it had before."""
    states = {each.artifact_id: each.state for each in engine.generations.residents}
    active = {artifact_id for artifact_id, state in states.items() if state is State.ACTIVE}
    failed = {artifact_id for artifact_id, state in states.items() if state is State.FAILED}
    seen = (engine.id, states, served)
    hold("I12", states.keys() == active | failed, seen)
    hold("I12", failed <= served, seen)
    passing = [
        each for each in engine.generations.records if each.failure and each.failure.reason != _OF_CONTENT
    ]
    hold("I14", not passing, passing)
    hold("I12", active == served - failed or (failed and served <= active | failed), seen)
    hold("I12", sorted(active) == sorted(each.artifact_id for each in engine.models), seen)
    hold("I9", not engine.ended and not engine.loads, (engine.ended, engine.loads))


def _go_round(world: World) -> None:
    for process in world.live:
        while process.activities:
            process.go_on(process.activities[0])
        for mirror in process.mirrors:
            while mirror.is_behind:
                mirror.hear()
        world.wake(process)
    for engine in world.live_engines:
        _finish_loads(world, engine)
    for gateway in world.live_gateways:
        for artifact_id in gateway.unread:
            gateway.read(artifact_id)
    for process in world.live:
        process.tell()
    world.now_s += LOAD_TIMEOUT_S / 8


def _finish_loads(world: World, engine: SimEngine) -> None:
    for load in tuple(engine.loads):
        for _ in range(8):
            if not load.is_over:
                engine.bring_on(load)
                world.wake(engine)
    world.wake(engine)
    while engine.ended:
        engine.dispose()


def _shown(world: World) -> tuple[object, ...]:
    """What rests when nothing of it changes: the clock, too, once nothing waits for it."""
    engines = tuple(each.generations.records for each in world.live_engines)
    busy = any(each.activities or any(it.is_behind for it in each.mirrors) for each in world.live)
    waits = any(each.next_due_s(world.now_s) is not None for each in world.live)
    return world.registry.revision, engines, world.now_s if busy or waits else None
