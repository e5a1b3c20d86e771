"""Work beside a scope, and pauses between tries."""

from __future__ import annotations

import asyncio

import pytest

from services.common.background import background
from services.common.backoff import Backoff


async def forever(ended: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


async def test_work_ends_with_its_scope() -> None:
    """When the scope is left, the work has been cancelled and has cleaned up."""
    ended = asyncio.Event()
    async with background(forever(ended)):
        await asyncio.sleep(0)
        assert not ended.is_set()
    assert ended.is_set()


async def test_a_failure_of_the_work_ends_the_body() -> None:
    """A background task cannot die unseen."""

    async def fail() -> None:
        raise LookupError("fault")

    with pytest.raises(LookupError, match="fault"):
        async with background(fail()):
            await asyncio.Event().wait()


async def test_a_failure_of_the_body_passes_alone() -> None:
    """The body's error is not wrapped, and keeps its cause."""
    cause = OSError("cause")
    with pytest.raises(ValueError, match="body") as failure:
        async with background(forever(asyncio.Event())):
            raise ValueError("body") from cause
    assert cause is failure.value.__cause__


async def test_cancelling_the_scope_cancels_the_work() -> None:
    """A cancelled owner leaves nothing running."""
    ended, entered = asyncio.Event(), asyncio.Event()

    async def own() -> None:
        async with background(forever(ended)):
            entered.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        owner = group.create_task(own())
        await entered.wait()
        owner.cancel()
    assert ended.is_set()


def test_pauses_grow_to_a_bound_and_start_over() -> None:
    """Each pause is between half and all of its step; steps double up to the bound."""
    backoff = Backoff(first_s=1.0, most_s=4.0)
    steps = [1.0, 2.0, 4.0, 4.0]
    assert all(step / 2 <= backoff.next_s() <= step for step in steps)
    backoff.reset()
    assert backoff.next_s() <= 1.0
