"""Back to what is, or was, served, while something else is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.rollback_command import roll_back
from services.cli.watch_command import follow
from services.common.errors import NotFound, PreconditionFailed
from services.common.ids import ArtifactId
from services.engine.loader_client import LoaderClient
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, FAILED, PENDING, SUPERSEDED, Operator, operator
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
SHORT = {"ticket_ttl_s": 0.2}


class SlowFetch:
    """The artifact that no loader ever finishes, once it is named; whether its fetch was called off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.artifact_id = ""
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        prepare = LoaderClient.prepare

        async def held(client: LoaderClient, artifact_id: ArtifactId) -> Any:
            if artifact_id != self.artifact_id:
                return await prepare(client, artifact_id)
            try:
                self.begun.set()
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        monkeypatch.setattr(LoaderClient, "prepare", held)


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> SlowFetch:
    return SlowFetch(monkeypatch)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three tiny artifacts."""
    folder = tmp_path_factory.mktemp("three")
    return [make_tiny_artifact(folder, seed=seed)[0] for seed in (1, 2, 3)]


@pytest.fixture
async def system(start: Start) -> Cluster:
    made: Cluster = await start("in_process", engine=SHORT, scheduler=SHORT)
    return made


@pytest.fixture
async def me(system: Cluster) -> AsyncIterator[Operator]:
    async with system.control() as control:
        yield operator(system, control)


async def test_a_rollback_and_a_failure_are_on_record(
    start: Start, driver: str, artifacts: list[Path]
) -> None:
    """On a real etcd as in memory: the rollback serves what was before, and what asks for too much fails."""
    system: Cluster = await start(driver, engine=SHORT, scheduler=SHORT)
    async with system.control() as control, system.client() as client:
        await control.connect(60)
        me = operator(system, control)
        first, second = await me.register(artifacts[:2])
        for artifact_id in (first, second):
            assert APPLIED == (await me.end(await me.publish(artifact_id))).state
        await roll_back(system.gateway, me.order(), None, wait_s=60, patience_s=60)
        outcome = await me.end(await me.publish(second, min_ready=2, timeout_ms=1))
        assert (FAILED, "WAITED_FOR") == (outcome.state, outcome.failure.reason)
        answer = await client.generate([3, 4, 5], max_tokens=2).complete()
        assert answer.provenance is not None
        assert (first, 3) == (answer.provenance.artifact_id, answer.provenance.revision)
        ended = [entry.outcome.state for entry in await me.history()]
    assert [APPLIED, APPLIED, APPLIED, FAILED] == ended


async def test_a_rollback_is_applied_while_another_artifact_is_fetched(
    system: Cluster, me: Operator, artifacts: list[Path], slow: SlowFetch
) -> None:
    """The engine holds what it names, so nothing is waited for; the fetch is called off.

    Fault injection: turns red when Generations never cancels a load that nobody asks for any more.
    """
    first, second, slow.artifact_id = await me.register(artifacts)
    for artifact_id in (first, second):
        await me.end(await me.publish(artifact_id))
    await me.publish(slow.artifact_id)
    await slow.begun.wait()
    back = await roll_back(system.gateway, me.order(), 1, wait_s=60, patience_s=60)
    assert (4, first) == (back.revision, back.artifact_id)
    await slow.ended.wait()
    async with system.client() as client:
        answer = await client.generate([3, 4, 5], max_tokens=2).complete()
    assert answer.provenance is not None
    assert (first, 4) == (answer.provenance.artifact_id, answer.provenance.revision)
    ended = [entry.outcome.state for entry in await me.history()]
    assert [APPLIED, APPLIED, SUPERSEDED, APPLIED] == ended
    again = await roll_back(system.gateway, me.order(), None, wait_s=60, patience_s=60)
    assert (5, second) == (again.revision, again.artifact_id)


async def test_an_abort_ends_what_is_on_its_way_and_leaves_what_is_served(
    me: Operator, artifacts: list[Path], slow: SlowFetch
) -> None:
    """Once; what is served by then cannot be aborted."""
    first, slow.artifact_id = await me.register(artifacts[:2])
    await me.end(await me.publish(first))
    await me.publish(slow.artifact_id)
    await slow.begun.wait()
    assert PENDING == (await me.cohort()).desired_state
    assert 3 == await me.control.abort(me.order())
    await slow.ended.wait()
    assert APPLIED == (await me.end(3)).state
    assert (SUPERSEDED, 3) == ((outcome := await me.end(2)).state, outcome.superseded_by)
    cohort = await me.cohort()
    assert (3, first) == (cohort.serving_revision, cohort.serving_artifact_id)
    with pytest.raises(PreconditionFailed, match="no publish of m@stable is pending"):
        await me.control.abort(me.order())


async def test_a_publish_can_be_watched_from_the_command_line(
    system: Cluster, me: Operator, artifacts: list[Path], slow: SlowFetch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for every change, the last one tells the end, and whether it was applied is told the shell."""
    first, slow.artifact_id = await me.register(artifacts[:2])
    await me.publish(first)
    assert await follow(system.gateway, "m", None, as_json=False)
    assert "revision 1 of m: APPLIED\n" in capsys.readouterr().out
    await me.publish(slow.artifact_id)
    await me.publish(first)
    assert not await follow(system.gateway, "m", 2, as_json=False)
    assert "revision 2 of m: SUPERSEDED by 3\n" in capsys.readouterr().out
    with pytest.raises(NotFound, match="m has no revision 9"):
        await follow(system.gateway, "m", 9, as_json=False)
