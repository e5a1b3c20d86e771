"""An artifact that reaches the store slowly: nobody serves it, publishes it or gives it up before it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.control_client import ControlClient, Order
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest
from services.common.errors import NotFound, PreconditionFailed
from services.common.ids import Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import Target
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
FETCHING, ACTIVE = types_pb2.GENERATION_STATE_FETCHING, types_pb2.GENERATION_STATE_ACTIVE


async def register(control: ControlClient, manifest: Manifest) -> None:
    request = pb.RegisterArtifactRequest(model="m", manifest=manifest.encode(), who="test", why="test")
    async with contextlib.aclosing(control.register(request)) as steps:
        async for _ in steps:
            pass


class Seen:
    """The states that engines told of their generations, and what the last one waits for."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self.states: list[int] = []
        self.error = ""

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), contextlib.aclosing(self._control.watch()) as statuses:
            async for status in statuses:
                for generation in (each for process in status.processes for each in process.generations):
                    self.states.append(generation.state)
                    self.error = generation.error
                if condition():
                    return


# Turns red when: ArtifactStore.open calls a directory without manifest an invalid request (the engine gives up),
# or it takes the manifest from elsewhere and looks at no file.
async def test_r_a13_an_artifact_that_is_still_being_written_stays_pending(
    start: Start, stories: dict[str, Path]
) -> None:
    """Files in a random order, the manifest last: PENDING and FETCHING until then, and by themselves ACTIVE after."""
    system: Cluster = await start("in_process")
    source = stories["stories-v1"]
    manifest = read_manifest(source)
    order = Order("m", "stable", manifest.id, who="test", why="test")
    assert system.registry is not None
    target = Target(revision=Revision(1), artifact_id=manifest.id, who="test", why="too early")
    await system.registry.put(keys.target(ModelName("early"), Cohort.STABLE), target.encode())
    names = [file.path for file in manifest.files]
    random.Random(13).shuffle(names)
    async with system.control() as control:
        seen, arriving = Seen(control), system.store / manifest.id
        arriving.mkdir(parents=True)
        for name in names:
            with pytest.raises(NotFound):
                await register(control, manifest)
            with pytest.raises(PreconditionFailed, match="PENDING"):
                await control.publish(order)
            shutil.copyfile(source / name, arriving / name)
        await seen.until(lambda: "written last" in seen.error)
        assert {FETCHING} == set(seen.states)
        shutil.copyfile(source / MANIFEST_NAME, arriving / MANIFEST_NAME)
        await register(control, manifest)
        assert 1 == await control.publish(order)
        await seen.until(lambda: ACTIVE in seen.states)
        assert types_pb2.GENERATION_STATE_FAILED not in seen.states
