"""New weights under traffic: nobody waits, nobody fails, and every answer is of one artifact."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from services.common.client import Client
from services.common.ids import ArtifactId
from services.engine.loaded_model import PreparedArtifact
from services.engine.loader_client import LoaderClient
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, PENDING, operator

STORY: Final = "Once upon a time"
TOKENS: Final = 40
TICKETS: Final = {"ticket_ttl_s": 0.2}
Start = Callable[..., Any]
Answer = tuple[str, tuple[int, ...]]


async def ask(client: Client) -> Answer:
    """The artifact that a stream named, and what it gave."""
    answer = await client.generate(STORY, max_tokens=TOKENS, temperature=0, ignore_eos=True).complete()
    assert answer.provenance is not None
    return answer.provenance.artifact_id, answer.token_ids


async def test_r_a1_s_c8_s_c9_nobody_notices_five_swaps(start: Start, stories: dict[str, Path]) -> None:
    """Four callers without a pause, who try nothing twice: no call fails, and each answer is one artifact's alone.

    Fault injection: turns red when `Generations._settle` drains what serving/ still names, or when `Assignments.wanted`
    leaves serving/ out.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    ending = asyncio.Event()

    async def go_on(client: Client) -> Counter[Answer]:
        answers: Counter[Answer] = Counter()
        while not ending.is_set():
            answers[await ask(client)] += 1
        return answers

    async with Client(system.gateway, max_tries=1) as client:
        pure: set[Answer] = set()
        for name in ("stories-v1", "stories-v2"):
            await system.publish("m", stories[name])
            pure.add(await ask(client))
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(go_on(client)) for _ in range(4)]
            for swap in range(5):
                await system.publish("m", stories[f"stories-v{swap % 2 + 1}"])
            ending.set()
    given = sum((task.result() for task in asking), Counter[Answer]())
    assert pure == given.keys()
    assert min(given.values()) > 1


async def test_r_c1_an_engine_that_starts_in_the_middle_of_a_swap_serves_what_was_served(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the target is loading, requests go to what the cohort was last bound to; then to the target.

    Fault injection: turns red when `Assignments.wanted` leaves serving/ out.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    first = await system.publish("m", stories["stories-v1"])
    there, real = asyncio.Event(), LoaderClient.prepare

    async def slow(loader: LoaderClient, artifact_id: ArtifactId) -> PreparedArtifact:
        if artifact_id != first.artifact_id:
            await there.wait()
        return await real(loader, artifact_id)

    monkeypatch.setattr(LoaderClient, "prepare", slow)
    second = await system.publish("m", stories["stories-v2"], wait_s=0)
    assert system.another
    await system.end("engine")
    async with (
        system.another("engine", **TICKETS),
        Client(system.gateway) as client,
        system.control() as control,
    ):
        me = operator(system, control)
        for _ in range(3):
            assert first.artifact_id == (await ask(client))[0]
        assert (first.revision, PENDING) == ((now := await me.cohort()).serving_revision, now.desired_state)
        there.set()
        assert APPLIED == (await me.end(second.revision)).state
        assert second.artifact_id == (await ask(client))[0]
