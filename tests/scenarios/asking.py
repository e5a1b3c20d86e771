"""Somebody who asks all the while."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from services.common.client import Client
from tests.scenarios.cluster import Cluster


@contextlib.asynccontextmanager
async def asking(system: Cluster, model: str) -> AsyncIterator[Counter[str]]:
    """Requests, one after another, while the scope lasts; how many each artifact answered. None may fail."""
    answered: Counter[str] = Counter()
    ending = asyncio.Event()

    async def ask() -> None:
        async with Client(system.gateway, max_tries=1) as client:
            while not (ending.is_set() and answered):
                asked = client.generate([3, 4, 5], model=model, max_tokens=8, ignore_eos=True)
                answer = await asked.complete()
                assert answer.provenance is not None
                assert 8 == len(answer.token_ids)
                answered[answer.provenance.artifact_id] += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        try:
            yield answered
        finally:
            ending.set()
