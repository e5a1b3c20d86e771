"""Who publishes: everything is waited for, to the last page of what was served before."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bench.swap_load import MODEL
from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli import publish
from services.cli.console import byte_progress
from services.cli.control_client import START_S, ControlClient, Order
from services.common.ids import ArtifactId

PATIENCE_S: Final = 300.0
_ACTIVE: Final = types_pb2.GENERATION_STATE_ACTIVE


class Operator(NamedTuple):
    """Somebody with a system of one engine and one model."""

    control: ControlClient

    async def register(self, *artifact_ids: ArtifactId) -> None:
        """Has what lies in the store verified; waits for the system to stand up first."""
        await self.control.connect(START_S)
        await self._until(lambda status: any(each.role == "loader" for each in status.processes))
        with byte_progress() as progress:
            for artifact_id in artifact_ids:
                await publish.register_by_id(self.control, _order(), artifact_id, progress, reverify=False)

    async def publish(self, artifact_id: ArtifactId) -> int:
        """The revision under which it will be served; waits for nothing."""
        return await self.control.publish(_order(artifact_id))

    async def swap(self, artifact_id: ArtifactId) -> float:
        """Publishes it; seconds until new requests are given to it."""
        begun_s = time.monotonic()
        await self.applied(await self.publish(artifact_id))
        return time.monotonic() - begun_s

    async def unpublish(self) -> None:
        await self.control.unpublish(_order())

    async def roll_back(self) -> float:
        """To what was served before; seconds until new requests are given to it."""
        begun_s = time.monotonic()
        await self.applied((await self.control.roll_back(_order(), None)).revision)
        return time.monotonic() - begun_s

    async def applied(self, revision: int) -> None:
        """Returns once it is; raises RuntimeError where it ends otherwise."""
        outcome = await self.end(revision)
        if outcome.state != pb.PUBLISH_STATE_APPLIED:
            raise RuntimeError(f"revision {revision} was not applied: {outcome}")

    async def end(self, revision: int) -> pb.PublishOutcome:
        """How that publish ended."""
        async with asyncio.timeout(PATIENCE_S):
            async with contextlib.aclosing(self.control.watch_publish(MODEL, revision)) as outcomes:
                return [outcome async for outcome in outcomes][-1]

    async def until_alone(self, artifact_id: ArtifactId) -> None:
        """Returns once the engine holds nothing else."""
        await self._until(lambda status: _held(status) == [(artifact_id, _ACTIVE)])

    async def _until(self, holds: Callable[[pb.Status], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(self.control.watch()) as statuses:
            async for status in statuses:
                if holds(status):
                    return


def _order(artifact_id: str = "") -> Order:
    return Order(MODEL, "stable", artifact_id, who="bench", why="bench")


def _held(status: pb.Status) -> list[tuple[str, int]]:
    return [(one.artifact_id, one.state) for each in status.processes for one in each.generations]
