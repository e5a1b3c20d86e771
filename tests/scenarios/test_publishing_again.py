"""An artifact that could not be served is published again: what failed before is mended, and is tried at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli import publish
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.common.backoff import Backoff
from services.common.errors import CorruptData
from services.engine.loaded_model import ModelLoading
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
