"""Publishes as an operator makes them, without waiting unless a test wants to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from halogen.v1 import control_pb2 as pb
from services.cli import publish
from services.cli.console import byte_progress
from services.cli.control_client import ControlClient, Means, Order
from tests.scenarios.cluster import Cluster

PENDING, APPLIED = pb.PUBLISH_STATE_PENDING, pb.PUBLISH_STATE_APPLIED
SUPERSEDED, FAILED = pb.PUBLISH_STATE_SUPERSEDED, pb.PUBLISH_STATE_FAILED
_ANSWER_S = 30.0


class Operator(NamedTuple):
    """Somebody who publishes artifacts of one model."""

    control: ControlClient
    store: Path
    model: str = "m"

    def order(self, artifact_id: str = "", **means: Any) -> Order:
        return Order(self.model, "stable", artifact_id, who="test", why="test", means=Means(**means))

    async def register(self, artifacts: Sequence[Path]) -> list[str]:
        """Their ids, READY to be published."""
        with byte_progress() as progress:
            return [
                await publish.register(self.control, self.order(), each, str(self.store), progress)
                for each in artifacts
            ]

    async def register_by_id(self, artifact_id: str) -> None:
        """One that the store has."""
        with byte_progress() as progress:
            await publish.register_by_id(self.control, self.order(), artifact_id, progress, reverify=False)

    async def publish(self, artifact_id: str, **means: Any) -> int:
        return await self.control.publish(self.order(artifact_id, **means))

    async def end(self, revision: int) -> pb.PublishOutcome:
        """How that publish ended."""
        async with contextlib.aclosing(self.control.watch_publish(self.model, revision)) as outcomes:
            return [outcome async for outcome in outcomes][-1]

    async def history(self, most: int = 1_000) -> list[pb.HistoryEntry]:
        """Oldest first."""
        request = pb.ListHistoryRequest(model=self.model, max_entries=most)
        return (await self.control.history(request, _ANSWER_S))[::-1]

    async def cohort(self) -> pb.CohortStatus:
        """The status of the model's only one."""
        (found,) = [
            each for each in (await self.control.status(_ANSWER_S)).cohorts if each.model == self.model
        ]
        return found

    async def until_waiting_for(self, revision: int, names: Sequence[str]) -> None:
        """Returns when these, and nobody else, are waited for."""
        async with contextlib.aclosing(self.control.watch_publish(self.model, revision)) as outcomes:
            async for outcome in outcomes:
                if list(outcome.waiting_for) == list(names):
                    return
        raise AssertionError(f"revision {revision} has ended")


async def until_held(me: Operator, expected: set[tuple[str, str]]) -> None:
    """Returns when the engines hold these artifacts and no other."""
    async with contextlib.aclosing(me.control.watch()) as statuses:
        async for status in statuses:
            held = {(each.id, one.artifact_id) for each in status.processes for one in each.generations}
            if held == expected:
                return


async def until_led(control: ControlClient) -> None:
    """Returns once the gateway knows of a scheduler that leads."""
    async with asyncio.timeout(60), contextlib.aclosing(control.watch()) as readings:
        async for reading in readings:
            if any(process.term for process in reading.processes):
                return


def operator(system: Cluster, control: ControlClient, model: str = "m") -> Operator:
    return Operator(control, system.store, model)
