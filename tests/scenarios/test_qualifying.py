"""What is found of an artifact is on record beside it: by the engine that serves it, and by people."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halogen.v1 import control_pb2 as pb
from services.cli import qualify
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.graph_hash import Build, Built
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]


async def qualifications(system: Cluster) -> list[pb.Qualification]:
    """As soon as there is one."""
    async with (
        asyncio.timeout(60),
        system.control() as control,
        contextlib.aclosing(control.watch()) as statuses,
    ):
        async for status in statuses:
            if status.qualifications:
                return list(status.qualifications)
    raise AssertionError


async def test_a_served_artifact_is_qualified_by_its_engine_and_by_people(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Parts 4 and 5 and the build's root after it is ACTIVE; what people add is shown by status and by inspect."""
    system: Cluster = await start(driver)
    artifact = stories["stories-v1"]
    published = await system.publish("m", artifact)
    [made] = await qualifications(system)
    graph = read_manifest(artifact).requires.graph
    assert (published.artifact_id, graph.root) == (made.artifact_id, made.graph_root)
    assert Built(graph, Build(dict(made.kernels), dict(made.device))).root == made.build
    assert ("cpu", [("warm_up", True)]) == (made.device["class"], [(p.name, p.passed) for p in made.probes])
    request = pb.QualifyArtifactRequest(
        approved=True, accuracy=0.5, data_set="d", git_commit="c0ffee1", who="ada", why="tried"
    )
    told = await qualify.put_on_record(system.gateway, "m", "stable", request)
    assert (True, 0.5, "d", "c0ffee1") == (told.approved, told.accuracy, told.data_set, told.git_commit)
    [by_status] = await qualifications(system)
    [by_inspect] = await asyncio.to_thread(qualify.on_record, system.gateway, published.artifact_id)
    assert ("tried", "tried") == (by_status.statements[0].why, by_inspect["statements"][0]["why"])
    assert published.artifact_id == read_manifest(artifact).id
