"""What the log says of a swap."""

from __future__ import annotations

import asyncio
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs
from structlog.typing import EventDict

from services.common.telemetry.log_filter import LogFilter
from tests.scenarios.cluster import Cluster
from tests.scenarios.test_swapping import TICKETS

Start = Callable[..., Any]
NAMES = ("checkpoint_start", "memory_prealloc", "graph_hash_match", "atomic_swap_commit")
ASKED = LogFilter(re.compile("^(checkpoint|state_machine|memory_pool)$"))


async def test_operators_find_the_events_that_they_know(start: Start, stories: dict[str, Path]) -> None:
    """Beginning, memory, graph and switch of the second publish, each under a component that can be asked for.

    Fault injection: turns red when a logger has no component, or an engine tells of a swap when it is ready for it.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    first = await system.publish("m", stories["stories-v1"])
    with capture_logs() as logs:
        second = await system.publish("m", stories["stories-v2"])
        async with asyncio.timeout(30):
            while 2 > [each["event"] for each in logs].count("atomic_swap_commit"):  # noqa: ASYNC110  # a log tells nobody
                await asyncio.sleep(0.01)
    told: dict[str, list[EventDict]] = {name: [] for name in NAMES}
    for entry in logs:
        if entry["event"] in NAMES:
            told[entry["event"]].append(ASKED(None, "info", entry))
    named = {"seq": second.revision, "model": "m"}
    [began] = [each for each in told["checkpoint_start"] if "seq" in each]
    assert {**named, "hash": second.artifact_id}.items() <= began.items()
    for taken in told["memory_prealloc"]:
        assert taken["pages"] == -(-taken["size"] // mmap.PAGESIZE) > 0
    [graph] = told["graph_hash_match"]
    assert (graph["expected"], True) == (graph["actual"], graph["ok"])
    swap = {**named, "old": first.artifact_id, "new": second.artifact_id}
    assert [swap, swap] == [  # committed by the scheduler, and heard of by the engine
        {key: each[key] for key in swap} for each in told["atomic_swap_commit"]
    ]
