"""A publish that is to come after one revision, and after no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli import publish
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.cli.published import Published
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]


async def after(system: Cluster, expected: int, artifact: Path, *, once: bool = False) -> Published:
    """Publishes the artifact after that revision."""
    order = Order("m", "stable", "", who="test", why="test", expected_revision=expected)
    store = str(system.store)
    return await publish.publish(system.gateway, order, artifact, store, reverify=False, wait_s=60, once=once)


async def test_what_comes_too_late_is_not_even_copied(start: Start, stories: dict[str, Path]) -> None:
    """Gigabytes may be spared. In time, or of what stands, it is taken.

    Fault injection: turns red when `publish` does not ask `_check_expected`, or asks it with `--once`.
    """
    system: Cluster = await start("in_process")
    for expected in (0, 1):
        assert expected + 1 == (await after(system, expected, stories["stories-v1"])).revision
    copied = set(system.store.iterdir())
    with pytest.raises(CommandError, match="m is at revision 2, not 1; nothing was copied: look"):
        await after(system, 1, stories["stories-v2"])
    assert copied == set(system.store.iterdir())
    assert 2 == (await after(system, 1, stories["stories-v1"], once=True)).revision
