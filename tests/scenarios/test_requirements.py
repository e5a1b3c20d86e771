"""An artifact that nobody here can serve: told before a byte of its weights is read, and nothing else is disturbed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halogen.v1 import control_pb2, types_pb2
from services.cli.control_client import ControlClient
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.conversion_options import ConversionOptions
from services.common.errors import PreconditionFailed, Unsupported
from services.common.ids import Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import Target
from tests.scenarios.cluster import Cluster
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
ELSEWHERE = {
    "sm_90": (ConversionOptions(device_classes=("sm_90",)), "device class sm_90 is required, cpu is here"),
    "runtime": (ConversionOptions(runtime=">=99"), "runtime >=99 is required"),
}


async def failures(system: Cluster) -> list[control_pb2.GenerationStatus]:
    """Generations that an engine has given up, once there are any."""
    async with (
        asyncio.timeout(60),
        system.control() as control,
        contextlib.aclosing(control.watch()) as statuses,
    ):
        async for status in statuses:
            generations = [each for process in status.processes for each in process.generations]
            failed = [each for each in generations if each.state == types_pb2.GENERATION_STATE_FAILED]
            if failed:
                return failed
    raise AssertionError


# Turns red when: Artifacts.check does not ask its check_plan, publish copies before it asks ControlClient.check, or the
# engine asks its loader without SuitableOnly.
@pytest.mark.parametrize("case", ELSEWHERE)
async def test_r_g5_an_artifact_for_elsewhere_is_refused_at_the_plan_stage(
    start: Start, tmp_path: Path, case: str
) -> None:
    """By the gateway at registration, and by an engine that is told of it all the same; nothing is copied or read."""
    options, expected = ELSEWHERE[case]
    system: Cluster = await start("in_process")
    artifact, manifest = make_tiny_artifact(tmp_path / "model", options=options)
    with pytest.raises(PreconditionFailed, match=f"by any engine that is there: {expected}"):
        await system.publish("m", artifact)
    assert system.registry is not None
    assert () == (await system.registry.list(keys.ARTIFACTS)).entries
    assert not ArtifactStore(system.store).holds(manifest.id)
    ArtifactStore(system.store).put(artifact)
    target = Target(revision=Revision(1), artifact_id=manifest.id, who="test", why="past the gateway")
    await system.registry.put(keys.target(ModelName("m"), Cohort.STABLE), target.encode())
    [failed] = await failures(system)
    assert expected in failed.error
    async with system.control() as control:
        status = await control.status(timeout_s=10)
    assert [()] == [tuple(each.artifact_ids) for each in status.processes if each.role == "loader"]


async def test_whoever_cannot_be_asked_before_the_copy_is_asked_after_it(start: Start) -> None:
    """A gateway of an older version has no such call, as a scheduler has none.

    Turns red when: ControlClient.check lets Unsupported pass.
    """
    system: Cluster = await start("in_process")
    async with ControlClient(system.scheduler) as control:
        await control.check("m", b"", timeout_s=10)
        with pytest.raises(Unsupported):
            await control.status(timeout_s=10)
