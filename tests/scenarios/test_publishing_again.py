"""An artifact that could not be served is published again: what failed before is mended, and is tried at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli import publish
from services.cli.console import CommandError
from services.cli.control_client import ControlClient, Order
from services.common.backoff import Backoff
from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.engine.loaded_model import ModelLoading
from services.engine.loader_client import LoaderClient
from services.gateway.text_model import TextModelReader
from tests.scenarios.cluster import Cluster

ORDER = Order("m", "stable", "", who="test", why="test")
Start = Callable[..., Any]
ROOMS = {
    "gateway": (TextModelReader, "read", "cannot serve m: it is torn"),
    "engine": (ModelLoading, "verify", "no engine can serve m: it is torn"),
}


class Patient(Backoff):
    """Never tries again by itself."""

    async def pause(self) -> None:
        await asyncio.Event().wait()


def tear(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> Callable[[], None]:
    """Has a method fail until what is returned is called."""
    real, torn = getattr(kind, method), [True]

    def fail(*arguments: object) -> Any:
        if torn:
            raise CorruptData("it is torn")
        return real(*arguments)

    monkeypatch.setattr(kind, method, fail)
    return torn.clear


async def again(system: Cluster, artifact: Path, *, once: bool) -> int:
    store = str(system.store)
    published = await publish.publish(
        system.gateway, ORDER, artifact, store, reverify=False, wait_s=60, once=once
    )
    return published.revision


# Fault injection: turns red when `Published._is_of` compares the artifact's id alone (gateway), or `_kept` keeps what has failed
# (once); `Catalog._reconcile` leaving out `_is_news` (gateway) has it wait for the next try.
@pytest.mark.parametrize("once", [False, True], ids=["anew", "once"])
@pytest.mark.parametrize("room", ROOMS)
async def test_what_failed_before_does_not_end_the_next_publish(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch, room: str, *, once: bool
) -> None:
    """It gets a revision of its own, also with `--once`, and is served; the failure of the first one was told."""
    monkeypatch.setattr("services.gateway.catalog.Backoff", Patient)
    kind, method, expected = ROOMS[room]
    mend = tear(monkeypatch, kind, method)
    system: Cluster = await start("in_process")
    with pytest.raises(CommandError, match=expected):
        await again(system, stories["stories-v1"], once=once)
    mend()
    assert 2 == await again(system, stories["stories-v1"], once=once)


async def test_what_is_served_keeps_its_revision_with_once(start: Start, stories: dict[str, Path]) -> None:
    """Whoever starts a system again and again publishes once."""
    system: Cluster = await start("in_process")
    assert [1, 1] == [await again(system, stories["stories-v1"], once=True) for _ in range(2)]


async def test_whoever_is_superseded_by_a_publish_of_the_same_artifact_has_what_he_wants(
    start: Start,
    stories: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """He is told under which revision it is served; whom another artifact came before is told that he failed.

    Fault injection: turns red when `_until_applied` does not ask `_alike`, or that compares no artifacts.
    """
    go_on, prepare = asyncio.Event(), LoaderClient.prepare

    async def held(loader: LoaderClient, artifact_id: ArtifactId) -> Any:
        await go_on.wait()
        return await prepare(loader, artifact_id)

    monkeypatch.setattr(LoaderClient, "prepare", held)
    system: Cluster = await start("in_process")
    async with system.control() as control, asyncio.TaskGroup() as group:
        await control.connect(60)
        tasks = []
        for revision, name in enumerate(("stories-v2", "stories-v1", "stories-v1"), start=1):
            tasks.append(group.create_task(ended(system, stories[name])))
            await until_named(control, revision)
        go_on.set()
    first, *others = [each.result() for each in tasks]
    assert "revision 1 of m@stable was SUPERSEDED by revision 2 before it was served" in first
    assert ["3", "3"] == others
    told = "revision 2 of m@stable was superseded by revision 3, which is of the same artifact"
    assert 1 == capsys.readouterr().err.count(told)


async def ended(system: Cluster, artifact: Path) -> str:
    """The revision under which it is served, or why it is not."""
    try:
        return str(await again(system, artifact, once=False))
    except CommandError as failure:
        return str(failure)


async def until_named(control: ControlClient, revision: int) -> None:
    """Returns when that is the revision of what the cohort is to serve."""
    async with contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            if revision in {each.desired_revision for each in status.cohorts}:
                return
