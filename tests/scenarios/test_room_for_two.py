"""A machine with room for two models: the third one waits before any of it is in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from halogen.v1 import types_pb2
from services.common.ids import ArtifactId
from services.engine.generation import Generation
from services.engine.generations import Generations
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, Operator, operator
from tests.scenarios.test_drain_then_load import SmallMachine, weights_held
from tests.scenarios.test_swapping import TICKETS
from tests.scenarios.test_weights import weights_of_loader
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact

Start = Callable[..., Any]

ARENA_BYTES: Final = 16 << 20


async def until_waiting(me: Operator, revision: int) -> None:
    """Returns when the engine says that what the publish names waits for a drain."""
    async with contextlib.aclosing(me.control.watch()) as statuses:
        async for status in statuses:
            for held in (one for each in status.processes for one in each.generations):
                if held.revision == revision and held.state != types_pb2.GENERATION_STATE_FETCHING:
                    assert types_pb2.GENERATION_STATE_ALLOCATING == held.state, held.error
                    if held.error.startswith("waiting_for_drain"):
                        return


async def until_let_go(me: Operator, artifact_id: str) -> None:
    """Returns when no engine has it any more: from then on the loader may take its memory for others."""
    async with contextlib.aclosing(me.control.watch()) as statuses:
        async for status in statuses:
            if artifact_id not in {one.artifact_id for each in status.processes for one in each.generations}:
                return


def is_in_memory(artifact_id: str) -> bool:
    return artifact_id in {path.name[:64] for path in weights_of_loader(os.getpid())}


async def test_a_third_publish_waits_for_a_drain_before_its_files_take_memory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer holds the first model while the second serves: the third, in the store, comes when that has ended.

    Fault injection: turns red (MEMORY_GUARD, at once) when GenerationLoad asks for no place before it fetches.
    """
    made: list[Generations] = []

    class Known(Generations):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("services.engine.serve.Generations", Known)
    artifacts = [make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=seed)[0] for seed in (1, 2, 3)]
    size = (artifacts[0] / "model.halogen").stat().st_size
    machine = SmallMachine(int(2.5 * size / 0.85), frozenset(weights_held()))
    monkeypatch.setattr("services.loader.serve.HostMemory", lambda: machine)
    system: Cluster = await start("in_process", loader={"keep_s": 0}, engine=TICKETS, scheduler=TICKETS)
    third = (await system.publish("m", artifacts[2])).artifact_id
    first = (await system.publish("m", artifacts[0])).artifact_id
    async with system.control() as control:
        me = operator(system, control)
        await until_let_go(me, third)
        with made[0].borrow(ArtifactId(first)):
            await system.publish("m", artifacts[1])
            revision = await me.publish(third)
            await until_waiting(me, revision)
            assert not is_in_memory(third)
        outcome = await me.end(revision)
        assert APPLIED == outcome.state, outcome


async def test_a_rollback_two_back_takes_the_room_of_what_rests(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What served between lies in memory for a rollback one back; the loader lets it go for the one before.

    Fault injection: turns red (MEMORY_GUARD, at once) when `_check_memory` does not ask whether a loader has others.
    """
    gone: asyncio.Queue[Generation] = asyncio.Queue()

    class Telling(Generations):
        def disposed(self, generation: Generation) -> None:
            super().disposed(generation)
            gone.put_nowait(generation)

    monkeypatch.setattr("services.engine.serve.Generations", Telling)
    artifacts = [make_tiny_artifact(tmp_path, MULTI_BLOCK, seed=seed)[0] for seed in (1, 2, 3)]
    room, others = 2.2 * (artifacts[0] / "model.halogen").stat().st_size, frozenset(weights_held())
    machine, host = (SmallMachine(int(each / 0.85), others) for each in (room, ARENA_BYTES + room))
    monkeypatch.setattr("services.loader.serve.HostMemory", lambda: machine)
    monkeypatch.setattr("services.engine.serve.HostMemory", lambda: host)
    engine = {"kv_arena_bytes": ARENA_BYTES, "kv_swap_bytes": 0, **TICKETS}
    system: Cluster = await start("in_process", loader={"keep_s": 0}, engine=engine, scheduler=TICKETS)
    async with system.control() as control:
        me = operator(system, control)
        first = (await system.publish("m", artifacts[0])).artifact_id
        for artifact in artifacts[1:]:
            await system.publish("m", artifact)
            await gone.get()
        assert not is_in_memory(first)
        outcome = await me.end(await me.publish(first))
        assert APPLIED == outcome.state, outcome
